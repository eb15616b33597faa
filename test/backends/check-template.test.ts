import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { checkTemplate } from '../../backends/configs/check-template.ts';
import type { RunSpec } from '../../config/run-spec.ts';

const messages = `{%- for m in messages -%}{{ '<' + m.role + '>' + m.content + '</>' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<assistant>' }}{%- endif -%}`;
const withoutReasoning = messages.replace(
  'm.content +',
  `(m.content.split('</think>')[-1] if m.role == 'assistant' else m.content) +`,
);
const lastAlone = `{{ messages[-1].content }}`;

const said = (
  chatTemplate: string,
  trajectoryStrategy: RunSpec['trajectoryStrategy'] = 'interleaved',
  isSingleTurn = false,
) => {
  const sampling = { templateArguments: {} } as RunSpec['sampling'];
  const spec = { model: 'preset:reverse-text-0.2m', sampling, trajectoryStrategy };
  return checkTemplate({ spec, chatTemplate }, new Map([['talk', { isSingleTurn }]]));
};

describe('what check says of a chat template', () => {
  test('nothing where the second turn continues from the first', async () => {
    assert.deepEqual(await said(messages), { obstacles: [], warnings: [] });
  });

  test('that each turn becomes a row of its own where the template rewrites the past, always or of reasoning', async () => {
    const { warnings } = await said(lastAlone);
    assert.match(warnings.join(), /writes earlier turns otherwise.*each turn of talk becomes a row of its own/);
    const reasoning = await said(withoutReasoning);
    assert.match(reasoning.warnings.join(), /takes the reasoning out of earlier turns.*<think>.*"branching"/);
  });

  test('that branching computes more than it has to where turns could share a row, and nothing where they could not', async () => {
    assert.match((await said(messages, 'branching')).warnings.join(), /"interleaved" trains the same tokens with less/);
    assert.deepEqual((await said(lastAlone, 'branching')).warnings, []);
  });

  test('nothing of turns where there is only one', async () => {
    assert.deepEqual(await said(lastAlone, 'interleaved', true), { obstacles: [], warnings: [] });
  });

  test('that prompts cannot be written where the template does not take the messages', async () => {
    const { obstacles } = await said(`{{ raise_exception('only systems') }}`);
    assert.match(obstacles.join(), /^talk: The chat template does not take these messages: .*only systems/);
  });
});
