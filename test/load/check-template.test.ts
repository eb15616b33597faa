import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { checkTemplate } from '../../load/checks/check-template.ts';
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
  const spec = {
    model: 'preset:reverse-text-0.2m',
    sampling,
    trajectoryStrategy,
    ...served({}),
  };
  return checkTemplate({ spec, chatTemplate }, new Map([['talk', { isSingleTurn }]]));
};

const served = (args: Record<string, string>): Pick<RunSpec, 'requested' | 'inference'> =>
  ({
    requested: { vllm: args },
    inference: { kind: 'policy-server' },
  }) as unknown as Pick<RunSpec, 'requested' | 'inference'>;

const look = {
  type: 'function' as const,
  function: {
    name: 'look',
    description: 'Looks.',
    parameters: { type: 'object' },
  },
};

const saidWithTools = async (chatTemplate: string, args: Record<string, string> = {}): Promise<string> => {
  const sampling = { templateArguments: {} } as RunSpec['sampling'];
  const spec = {
    model: 'preset:x',
    sampling,
    trajectoryStrategy: 'interleaved' as const,
    ...served(args),
  };
  const use = {
    spec: { ...spec, model: 'preset:reverse-text-0.2m' },
    chatTemplate,
  };
  const { warnings } = await checkTemplate(use, new Map([['talk', { isSingleTurn: true, tools: [look] }]]));
  return warnings.join('\n');
};

describe('what check says of tool calls', () => {
  test('a template without known marks is named, with the parsers that are read', async () => {
    assert.match(
      await saidWithTools(messages),
      /talk has tools.*none of the marks.*tool_call_parser, one of .*qwen3_coder/,
    );
  });

  test('nothing where the template shows the form, or the config names it', async () => {
    assert.equal(await saidWithTools(`${messages}{# <tool_call><function=name> #}`), '');
    assert.equal(
      await saidWithTools(messages, {
        tool_call_parser: 'qwen3_coder',
        reasoning_parser: 'qwen3',
      }),
      '',
    );
  });

  test('a parser that is not read here is named', async () => {
    const says = await saidWithTools(`${messages}{# <tool_call> #}`, {
      tool_call_parser: 'jamba',
      reasoning_parser: 'step3',
    });
    assert.match(says, /tool_call_parser = "jamba" is not read here/);
    assert.match(says, /reasoning_parser = "step3" is not read here/);
  });
});

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
    assert.deepEqual(await said(lastAlone, 'interleaved', true), {
      obstacles: [],
      warnings: [],
    });
  });

  test('that prompts cannot be written where the template does not take the messages', async () => {
    const { obstacles } = await said(`{{ raise_exception('only systems') }}`);
    assert.match(obstacles.join(), /^talk: The chat template does not take these messages: .*only systems/);
  });
});
