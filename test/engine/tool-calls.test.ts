import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type OpenAI from 'openai';
import { StopStringScanner } from '../../engine/server/generation/stop-strings.ts';
import type { ToolCall } from '../../core/rl/rollout/rollout.ts';
import { SpeechReader } from '../../engine/speech/speech.ts';
import { chainModel, openStage } from './server-stage.ts';

function read(pieces: readonly string[]): { content: string; calls: readonly ToolCall[] } {
  const reader = new SpeechReader({ tools: [] });
  const told = pieces.map((piece) => reader.push(piece)).join('');
  const { content, toolCalls } = reader.finish();
  return { content: told + content, calls: toolCalls };
}

const call = (name: string, args: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;

test('calls are told apart from the text before them', () => {
  const text = `Let me look.\n${call('look', { at: 'cat' })}\n${call('stop', {})}\n`;
  assert.deepEqual(read([text]), {
    content: 'Let me look.\n',
    calls: [
      { name: 'look', arguments: '{"at": "cat"}' },
      { name: 'stop', arguments: '{}' },
    ],
  });
});

test('what is not the JSON of a call stays text to the letter', () => {
  const texts = [
    '<tool_call>\n{"name": "look", "arguments": {"at"</tool_call>',
    '  <tool_call>{"name": "look"}</tool_call>  ',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": "text"}</tool_call>',
    '<tool_call>[]</tool_call> and on',
    '<tool_call>{"name": "look", "arguments": {}}<tool_call>{"name": "stop", "arguments": {}}</tool_call>',
    'a <tool_cal and </tool_call>',
    '<tool_call>{"name": "look", "argu',
    `<tool_call>{"name": "deep", "arguments": {"a": ${'['.repeat(20_000)}${']'.repeat(20_000)}}}</tool_call>`,
    ' \n ',
  ];
  for (const text of texts) assert.deepEqual(read([text]), { content: text, calls: [] });
});

test('a call that the end of the text leaves open counts if its JSON is whole', () => {
  assert.deepEqual(read(['so <tool_call>{"name": "look", "arguments": {}}']).calls, [
    { name: 'look', arguments: '{}' },
  ]);
});

const fragment = fc.constantFrom(
  '<tool_call>',
  '</tool_call>',
  '{"name":"f","arguments":{"x":1}}',
  '<',
  ' ',
  '\n',
  'ab',
  '<tool',
  '{',
);

test('how the text is cut into pieces changes nothing', () => {
  fc.assert(
    fc.property(
      fc.array(fragment, { maxLength: 12 }),
      fc.infiniteStream(fc.integer({ min: 1, max: 5 })),
      (parts, cuts) => {
        const text = parts.join('');
        const pieces: string[] = [];
        for (let at = 0; at < text.length;) {
          const { value: length } = cuts.next() as { value: number };
          pieces.push(text.slice(at, at + length));
          at += length;
        }
        assert.deepEqual(read(pieces), read([text]));
      },
    ),
  );
});

test('a text ends before the first stop string in it, however it is cut into pieces', () => {
  const letters = fc.string({ unit: fc.constantFrom('a', 'b'), maxLength: 30 });
  const stop = fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 4 });
  fc.assert(
    fc.property(letters, fc.array(stop, { maxLength: 3 }), fc.boolean(), (text, stops, includeStop) => {
      const scanner = new StopStringScanner({ stops, includeStop });
      let told = '';
      let length = 0;
      while (length < text.length && scanner.matched === null) told += scanner.push(text[length++]!);
      told += scanner.finish();
      const ends = stops.flatMap((word) => (text.includes(word) ? [text.indexOf(word) + word.length] : []));
      const end = Math.min(...ends);
      if (ends.length === 0) assert.equal(told, text);
      else assert.equal(length, end, 'a stop string is seen with its last letter');
      if (scanner.matched !== null) {
        assert.equal(told, text.slice(0, includeStop ? end : end - scanner.matched.length));
        assert.ok(text.slice(0, end).endsWith(scanner.matched));
      }
    }),
  );
});

const tools: OpenAI.ChatCompletionFunctionTool[] = [
  { type: 'function', function: { name: 'look', description: 'Looks.', parameters: { type: 'object' } } },
];
const pieces = [
  'Let me ',
  'look.\n',
  '<tool_',
  'call>',
  '{"name": "look", ',
  '"arguments": {"at": "cat"}}',
  '</tool_call>',
];
const twice = [...pieces, '\n<tool_call>{"name": "stop", ', '"arguments": {}}</tool', '_call>'];

test('a chat with tools answers with tool_calls, whole and streamed alike', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', chainModel(twice));
  const request = { model: 'policy', messages: [{ role: 'user' as const, content: 'cat?' }], tools, seed: 1 };
  const { choices } = await client.chat.completions.create({ ...request, tool_choice: 'auto' });
  const [choice] = choices as [OpenAI.ChatCompletion.Choice];
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, 'Let me look.\n');
  const calls = choice.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[];
  assert.deepEqual(
    calls.map((each) => each.function),
    [
      { name: 'look', arguments: '{"at": "cat"}' },
      { name: 'stop', arguments: '{}' },
    ],
  );
  assert.equal(new Set(calls.map(({ id }) => id)).size, 2);
  const streamed = await client.chat.completions.stream(request).finalChatCompletion();
  assert.equal(streamed.choices[0]!.finish_reason, 'tool_calls');
  assert.equal(streamed.choices[0]!.message.content, 'Let me look.\n');
  const shape = ({ id, type, function: { name, arguments: args } }: (typeof calls)[number]): unknown => [
    id,
    type,
    name,
    args,
  ];
  assert.deepEqual((streamed.choices[0]!.message.tool_calls as typeof calls).map(shape), calls.map(shape));
});

test('without tools, or with tool_choice "none", what looks like a call is text', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', chainModel(pieces));
  const request = { model: 'policy', messages: [{ role: 'user' as const, content: 'cat?' }] };
  for (const extra of [{}, { tools, tool_choice: 'none' as const }]) {
    const { choices } = await client.chat.completions.create({ ...request, ...extra });
    assert.equal(choices[0]!.message.content, pieces.join(''));
    assert.equal(choices[0]!.finish_reason, 'stop');
  }
});

test('parallel_tool_calls: false keeps the first call', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', chainModel(twice));
  const { choices } = await client.chat.completions.create({
    model: 'policy',
    messages: [{ role: 'user', content: 'cat?' }],
    tools,
    parallel_tool_calls: false,
  });
  assert.equal(choices[0]!.message.tool_calls!.length, 1);
});

test('calls and their results go back through the chat template, arguments as objects', async (t) => {
  const { hold, ask } = await openStage(t);
  await hold('policy', chainModel(pieces));
  const messages = [
    { role: 'user', content: 'cat?' },
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'look', arguments: '{"at":"cat"}' } }],
    },
    { role: 'tool', tool_call_id: 'call_1', content: [{ type: 'text', text: 'a cat' }] },
  ];
  const { tokens, count, max_model_len } = await ask<{ tokens: number[]; count: number; max_model_len: number }>(
    '/tokenize',
    { model: 'policy', messages, tools, add_generation_prompt: false },
  );
  assert.equal(count, tokens.length);
  assert.equal(max_model_len, 2048);
  const { prompt } = await ask<{ prompt: string }>('/detokenize', { model: 'policy', tokens });
  assert.match(prompt, /"arguments": \{"at": "cat"\}/);
  assert.match(prompt, /"content": "a cat"/);
  assert.match(prompt, /"name": "look", "description": "Looks\."/);
});

test('what would need enforced calls is refused by name', async (t) => {
  const { hold, refusal } = await openStage(t);
  await hold('policy', chainModel(pieces));
  const request = { model: 'policy', messages: [{ role: 'user', content: 'cat?' }], tools };
  for (const tool_choice of ['required', { type: 'function', function: { name: 'look' } }]) {
    const { status, message, param } = await refusal('/v1/chat/completions', { ...request, tool_choice });
    assert.deepEqual([status, param], [400, 'tool_choice']);
    assert.match(message, /"auto" and "none"/);
  }
});

test('a policy server that is told how its models write calls and thoughts reads them so', async (t) => {
  const said = ['hm', '</think>', '{"name": "look", ', '"parameters": {"at": ', '2512292042121000001}}'];
  const { client, hold } = await openStage(t, { parsers: { tools: 'llama3_json', reasoning: 'deepseek_r1' } });
  await hold('policy', chainModel(said));
  const request = { model: 'policy', messages: [{ role: 'user' as const, content: 'cat?' }], tools, seed: 1 };
  const { choices } = await client.chat.completions.create(request);
  const { content, tool_calls: calls, ...message } = choices[0]!.message;
  assert.equal(content, null);
  assert.deepEqual(
    (calls as OpenAI.ChatCompletionMessageFunctionToolCall[]).map((each) => each.function),
    [{ name: 'look', arguments: '{"at": 2512292042121000001}' }],
  );
  assert.equal((message as { reasoning?: string }).reasoning, 'hm');
});
