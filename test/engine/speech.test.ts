import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import type { ToolSchema } from '../../core/rl/rollout/rollout.ts';
import { toolParserOf } from '../../engine/speech/families.ts';
import { readSpeech } from '../../engine/speech/speech.ts';

interface Recorded {
  readonly tools: ToolSchema[];
  readonly cases: readonly {
    readonly tools: string;
    readonly reasoning?: string;
    readonly kwargs?: Record<string, unknown>;
    readonly text: string;
    readonly said: {
      reasoning: string | null;
      content: string | null;
      calls: [string, string][];
    };
  }[];
}

const recorded = JSON.parse(
  readFileSync(new URL('../data/tool-calls/recorded.json', import.meta.url), 'utf8'),
) as Recorded;

/**
 * Left out of the comparison: arguments that are no object and calls without a name (no environment could take them), numbers that Python writes
 * anew (1e3 becomes 1000.0), junk before Mistral's old list, and the tag that vLLM adds itself to a thought of Gemma's.
 */
const onPurpose = [
  '"arguments": "text"',
  '[TOOL_CALLS]{}',
  'share=1e3',
  '[TOOL_CALLS] junk',
  'thought\nhm<channel|>answer',
];

for (const parser of new Set(recorded.cases.map(({ tools }) => tools))) {
  test(`${parser} reads recorded turns as vLLM 0.32.0 does`, () => {
    const wrong: unknown[] = [];
    for (const { tools, reasoning = 'none', kwargs, text, said } of recorded.cases) {
      if (tools !== parser || onPurpose.some((piece) => text.includes(piece))) continue;
      const parsers = { tools, reasoning };
      const heard = readSpeech(text, {
        tools: recorded.tools,
        parsers,
        templateArguments: kwargs,
      });
      const came = {
        reasoning: heard.reasoning,
        content: heard.content,
        calls: heard.toolCalls.map((call) => [call.name, call.arguments]),
      };
      const right = {
        ...said,
        reasoning: said.reasoning ?? '',
        content: said.content ?? '',
      };
      if (JSON.stringify(came) !== JSON.stringify(right)) wrong.push({ reasoning, kwargs, text, came, right });
    }
    assert.deepEqual(wrong, []);
  });
}

test('numbers and the order of keys of a call are what was written', () => {
  const args = '{"key": 2512292042121000001, "share": 2.0, "far": 1e400, "10": 1, "2": 2}';
  const said = `<tool_call>\n{"name": "look", "arguments": ${args}}\n</tool_call>`;
  assert.deepEqual(readSpeech(said, { tools: recorded.tools }).toolCalls, [{ name: 'look', arguments: args }]);
});

test('without a setting, thoughts in tags are no content, and a call inside of closed ones is not made', () => {
  const call = '<tool_call>\n{"name": "look", "arguments": {"key": 1}}\n</tool_call>';
  const closed = readSpeech(`<think>\nmaybe ${call}\n</think>\n\nanswer`, {
    tools: recorded.tools,
  });
  assert.deepEqual(closed, {
    reasoning: `\nmaybe ${call}\n`,
    content: '\n\nanswer',
    toolCalls: [],
  });
  const behind = readSpeech(`hm</think>\n${call}`, {
    tools: recorded.tools,
    isThoughtOpen: true,
  });
  assert.deepEqual([behind.reasoning, behind.toolCalls.length], ['hm', 1]);
  const plain = readSpeech('answer', { tools: recorded.tools });
  assert.deepEqual(plain, { reasoning: '', content: 'answer', toolCalls: [] });
});

test('gpt-oss: thoughts, calls and the answer stand in channels', () => {
  const parsers = { tools: 'openai', reasoning: 'openai_gptoss' };
  const place = { tools: recorded.tools, parsers };
  const thought = '<|channel|>analysis<|message|>hm<|end|><|start|>assistant';
  const call =
    '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"key":2512292042121000001}<|call|>';
  assert.deepEqual(readSpeech(thought + call, place), {
    reasoning: 'hm',
    content: '',
    toolCalls: [{ name: 'look', arguments: '{"key": 2512292042121000001}' }],
  });
  assert.equal(readSpeech(`${thought}<|channel|>final<|message|>answer`, place).content, 'answer');
  assert.deepEqual(readSpeech('<|channel|>analysis<|message|>cut', place), {
    reasoning: 'cut',
    content: '',
    toolCalls: [],
  });
});

/** Left out: arguments that Python writes anew (1e3, letters as \\u00e9), and a header that another one interrupts, whose first word vLLM takes for a tool. */
const otherHarmony = ['é', 'analysis: hm<|start|>'];

test('gpt-oss is read as the HarmonyParser of vLLM 0.32.0 does', () => {
  const file = new URL('../data/tool-calls/harmony.json', import.meta.url);
  const { cases } = JSON.parse(readFileSync(file, 'utf8')) as Pick<Recorded, 'cases'>;
  const parsers = { tools: 'openai', reasoning: 'openai_gptoss' };
  const compared = cases.filter(({ text }) => !otherHarmony.some((piece) => text.includes(piece)));
  assert.ok(compared.length > 50);
  for (const { text, said } of compared) {
    const { reasoning, content, toolCalls } = readSpeech(text, { tools: recorded.tools, parsers });
    const calls = toolCalls.map((call) => [call.name, call.arguments]);
    const right = { reasoning: said.reasoning ?? '', content: said.content ?? '', calls: said.calls };
    assert.deepEqual({ reasoning, content, calls }, right, text);
  }
});

test('the marks in a chat template choose the parser', () => {
  const templates: [string, string | null][] = [
    ['<tool_call>\n<function=name>', 'qwen3_coder'],
    ['<tool_call>\n{"name"', 'hermes'],
    ['<tool_call>{name}\n<arg_key>', 'glm45'],
    ['[TOOL_CALLS]', 'mistral'],
    ['<｜tool▁calls▁begin｜>```json', 'deepseek_v3'],
    ['<|tool_calls_section_begin|>', 'kimi_k2'],
    ['<|tool_call_start|>', 'lfm2'],
    ['<|tool_call>call:', 'gemma4'],
    ['{{ message.content }}', null],
  ];
  for (const [template, parser] of templates) assert.equal(toolParserOf(template), parser);
});
