import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const file = `
model = "preset:reverse-text-0.2m"
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 100
[[env]]
id = "reverse-text"
`;

function problemsOf(more: string): string[] {
  const parsed = parseRunConfig(file + more, { file: 'words.toml' });
  return parsed.ok ? [] : parsed.problems.map(({ expected, received }) => `${expected}: ${received}`);
}

test('limits of runs, rollouts, evaluations and searches come into the spec, and no others', () => {
  const more = `
[env.budget]
tool_calls = 3
wall_seconds = 60
[eval.budget]
tokens = 5000
[budget]
tokens = 1000
sandbox_seconds = 2.5
`;
  const parsed = parseRunConfig(file + more, { file: 'words.toml' });
  assert.ok(parsed.ok, JSON.stringify(parsed));
  const none = { tokens: null, money: null, sandboxS: null, toolCalls: null, wallS: null };
  assert.deepEqual(parsed.spec.budget, { ...none, tokens: 1000, sandboxS: 2.5 });
  assert.deepEqual(parsed.spec.environments[0]!.budget, { ...none, toolCalls: 3, wallS: 60 });
  assert.deepEqual(parsed.spec.eval?.budget, { ...none, tokens: 5000 });
  const plain = parseRunConfig(`${file}[budget]\n`, { file: 'words.toml' });
  assert.ok(plain.ok && !('budget' in plain.spec) && !('budget' in plain.spec.environments[0]!));
});

test('money is refused where a price is not known, by the names of the prices', () => {
  const expected =
    '[cost] prompt and [cost] completion beside it, 0 where it costs nothing: money is limited only at known prices: no price';
  for (const table of ['[budget]', '[env.budget]', '[eval.budget]'])
    assert.deepEqual(problemsOf(`${table}\nmoney = 1\n`), [expected], table);
  assert.match(problemsOf('[budget]\nmoney = 1\n[cost]\nprompt = 1\n').join(), /^\[cost\] completion beside it/);
  assert.deepEqual(problemsOf('[budget]\nmoney = 1\n[cost]\nprompt = 0\ncompletion = 1\n'), []);
  const search = '[gepa]\nreflection_model = "m"\nurl = "http://127.0.0.1:9/v1"\n';
  const prices = '[cost]\nprompt = 1\ncompletion = 1\n';
  assert.match(
    problemsOf(`[budget]\nmoney = 1\n${prices}${search}`).join(),
    /^\[cost\] reflection_prompt and \[cost\] reflection_completion beside it/,
  );
});

test('a budget that is below what one step takes at least is refused', () => {
  assert.match(problemsOf('[budget]\ntokens = 100\n').join(), /^at least 101: an answer may have 101 tokens/);
  assert.deepEqual(problemsOf('[budget]\ntokens = 101\n'), []);
  const prices = '[cost]\nprompt = 1\ncompletion = 10\n';
  assert.match(problemsOf(`${prices}[budget]\nmoney = 0.001\n`).join(), /^at least 0.001001: one answer of 100 tokens/);
});
