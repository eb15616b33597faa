/** Answers of servers that cannot be right are refused, with what came. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { turnIn } from '../../backends/inference/openai/chat-answer.ts';
import { samplesIn } from '../../backends/inference/openai/openai-bodies.ts';
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';

const root = 'http://server';

test('a completion whose log probabilities are not one for each token is refused', () => {
  const answer = (logprobs: unknown) => ({
    choices: [{ index: 0, finish_reason: 'stop', token_ids: [1, 2], logprobs: { token_logprobs: logprobs } }],
  });
  assert.deepEqual(samplesIn(answer([-0.5, 0.001]), { count: 1, root })[0]!.logprobs, [-0.5, 0.001]);
  assert.throws(() => samplesIn(answer([-0.5]), { count: 1, root }), /got 2 token ids with 1 logprobs/);
  for (const wrong of [[-0.5, 7], [-0.5, Infinity], [-0.5, null], null])
    assert.throws(() => samplesIn(answer(wrong), { count: 1, root }), /^InferenceRejected|expected 1 choices/);
});

test("a server's own words are kept where it reports an error in place of an answer", () => {
  assert.throws(
    () => turnIn({ error: { message: 'overloaded' } }, { tokens: 'none' }, root),
    /found none.*the server says: overloaded/s,
  );
});

test('an error of a chat template names the line and the tag, or the operation', () => {
  const wrong: readonly (readonly [string, RegExp])[] = [
    [
      'a\n{% for m in messages %}',
      /expected \{% endfor %\} or \{% else %\}, got its end, in line 2: \{% for m in messages %\}/,
    ],
    ['{% endif %}', /unknown tag \{% endif %\}, in line 1: \{% endif %\}/],
    ['{% if x %}\n\n{{ x | }}{% endif %}', /line 3: \{\{ x \| \}\}/],
    ['{% include "x" %}', /line 1: \{% include "x" %\}/],
    [`{{ ${'('.repeat(100_000)}1${')'.repeat(100_000)} }}`, /deep in one another/],
    ['{% break %}', /outside of a loop/],
  ];
  for (const [template, said] of wrong)
    assert.throws(() => compileTemplate(template), { code: 'ModelUnsupported', message: said });
  const rendered = (template: string) => renderBounded(compileTemplate(template), { messages: [] });
  assert.throws(() => rendered('{{ frobnicate() }}'), /'frobnicate' is not defined/);
  assert.throws(() => rendered('{{ raise_exception("no system role") }}'), { message: 'no system role' });
});
