import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import type { TemplateMessage } from '../../engine/model/template/chat-template.ts';
import { loadModelFolder, saveModelFolder } from '../../engine/model/model-folder.ts';
import { hasUnknownExpression } from '../../engine/model/tokenizer/pre-tokenizing.ts';
import { createPreset } from '../../engine/model/presets.ts';
import { loadTokenizer } from '../../engine/model/tokenizer/load-tokenizer.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import { temporaryFolder } from './models.ts';

/** Recorded from Python's tokenizers and transformers by golden/make_tokenizer_goldens.py. */
const golden = fileURLToPath(new URL('./golden', import.meta.url));
const Decoded = z.object({ ids: z.array(z.int()), decoded: z.string(), whole: z.string() });
const TokenizerCases = z.object({ texts: z.array(Decoded.extend({ text: z.string() })), ids: z.array(Decoded) });
const ChatCases = z.array(
  z.object({
    name: z.string(),
    template: z.enum(['hermes', 'llama3', 'both']),
    messages: z.array(z.custom<TemplateMessage>()),
    tools: z.array(z.looseObject({})).nullable(),
    kwargs: z.record(z.string(), z.unknown()),
    add_generation_prompt: z.boolean(),
    text: z.string().optional(),
    ids: z.array(z.int()).optional(),
    error: z.string().optional(),
  }),
);
type ChatCase = z.infer<typeof ChatCases>[number];

const read = (...path: string[]): Promise<string> => readFile(join(golden, ...path), 'utf8');
const [tokenizerText, hermes, llama3] = await Promise.all([
  read('tokenizers', 'byte-level', 'tokenizer.json'),
  read('chat', 'hermes.jinja'),
  read('chat', 'llama3.jinja'),
]);
const rawConfig = JSON.parse(await read('tokenizers', 'byte-level', 'tokenizer_config.json')) as object;
const chat_template = [
  { name: 'default', template: llama3 },
  { name: 'tool_use', template: hermes },
];
const chatTokenizer = (
  config: object,
  templates: { chatTemplate?: string; toolTemplate?: string } = {},
): ChatTokenizer =>
  new ChatTokenizer(
    { tokenizer: tokenizerText, config: JSON.stringify({ ...rawConfig, ...config }), ...templates },
    'x',
  );
const templated = {
  hermes: chatTokenizer({ chat_template: hermes }),
  llama3: chatTokenizer({}, { chatTemplate: llama3 }),
  both: chatTokenizer({ chat_template }),
};

for (const name of ['byte-level', 'byte-fallback']) {
  test(`${name} BPE gives the ids and the texts that Python gives`, async () => {
    const tokenizer = await loadTokenizer(join(golden, 'tokenizers', name));
    const cases = TokenizerCases.parse(JSON.parse(await read('tokenizers', name, 'cases.json')));
    assert.ok(cases.texts.length > 10);
    for (const { text, ids } of cases.texts) assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
    for (const { ids, decoded, whole } of [...cases.texts, ...cases.ids]) {
      assert.equal(tokenizer.decode(ids), decoded);
      assert.equal(tokenizer.decode(ids, { skipSpecialTokens: false }), whole);
    }
  });
}

test('text comes back from its ids, up to its Unicode normalization', async () => {
  const tokenizer = await loadTokenizer(join(golden, 'tokenizers', 'byte-level'));
  const { texts } = TokenizerCases.parse(JSON.parse(await read('tokenizers', 'byte-level', 'cases.json')));
  for (const { text } of texts) {
    assert.equal(tokenizer.decode(tokenizer.encode(text), { skipSpecialTokens: false }), text.normalize('NFC'));
  }
});

test("conversations are rendered to transformers' text and ids", async () => {
  const cases = ChatCases.parse(JSON.parse(await read('chat', 'cases.json')));
  assert.ok(cases.length > 30);
  for (const { text, ids, error, ...conversation } of cases) {
    const tokenizer = templated[conversation.template];
    const where = `${conversation.template}: ${conversation.name}`;
    if (error === undefined) {
      assert.equal(rendered(tokenizer, conversation), text, where);
      assert.deepEqual(tokenizer.encode(text!), ids, where);
    } else {
      const expected = { code: 'InferenceRejected', message: new RegExp(error) };
      assert.throws(() => rendered(tokenizer, conversation), expected, where);
    }
  }
});

test('arguments written as JSON are rendered as the object they say', async () => {
  const cases = ChatCases.parse(JSON.parse(await read('chat', 'cases.json')));
  const conversation = cases.find(({ name, template }) => name === 'two calls' && template === 'hermes')!;
  const messages = conversation.messages.map((message) => ({
    ...message,
    ...(message.tool_calls && {
      tool_calls: message.tool_calls.map((call) => ({
        ...call,
        function: { ...call.function, arguments: JSON.stringify(call.function.arguments) },
      })),
    }),
  }));
  assert.equal(rendered(templated.hermes, { ...conversation, messages }), conversation.text);
  const call = (given: string): TemplateMessage => ({
    role: 'assistant',
    content: null,
    tool_calls: [{ function: { name: 'clock', arguments: given } }],
  });
  assert.match(templated.hermes.renderChatText([call('')], { addGenerationPrompt: false }), /"arguments": \{\}/);
  for (const broken of ['{', '[1]', '"text"']) {
    const render = (): unknown => templated.hermes.renderChat([call(broken)]);
    assert.throws(render, { code: 'InferenceRejected', message: /"clock" must be the JSON of an object/ });
  }
});

test('prompts that differ in tools or template arguments are not taken for each other', () => {
  const messages = [{ role: 'user', content: 'hi' }];
  const tools = [{ type: 'function', function: { name: 'f', parameters: {} } }];
  const templateArguments = { enable_thinking: false };
  const prompts = [{}, { tools }, { templateArguments }, { tools, templateArguments }].map((options) => {
    const first = templated.hermes.renderChat(messages, options);
    assert.equal(templated.hermes.renderChat([...messages], { ...options }), first, 'rendered once');
    return templated.hermes.decode(first, { skipSpecialTokens: false });
  });
  assert.equal(new Set(prompts).size, 4);
});

test('no preset has an expression that has to be watched while it works: that costs more than most of its texts', () => {
  for (const name of ['preset:reverse-text-0.2m', 'preset:reverse-text-vllm-0.2m', 'preset:chars-0.4m']) {
    const { 'tokenizer.json': tokenizer } = createPreset(name, { seed: 0 }).files;
    assert.equal(hasUnknownExpression(JSON.parse(tokenizer!)), false, name);
  }
});

test('a folder may hold its templates in files of their own', async (t) => {
  const folder = await temporaryFolder(t);
  const preset = createPreset('preset:reverse-text-0.2m', { seed: 0 });
  const config = JSON.stringify({ ...rawConfig, chat_template: '{{ "of the config" }}' });
  const files = {
    ...preset.files,
    'tokenizer.json': tokenizerText,
    'tokenizer_config.json': config,
    'chat_template.jinja': llama3,
    'additional_chat_templates/tool_use.jinja': hermes,
  };
  await saveModelFolder({ files, parameters: preset.parameters }, folder);
  const loaded = await loadModelFolder(folder);
  assert.deepEqual(loaded.files, files);
  const cases = ChatCases.parse(JSON.parse(await read('chat', 'cases.json'))).filter((c) => c.template === 'both');
  for (const tokenizer of [loaded.tokenizer, await loadTokenizer(folder)]) {
    for (const conversation of cases) assert.equal(rendered(tokenizer, conversation), conversation.text);
  }
});

test('without a template, or with one for tools alone, messages are refused', () => {
  const messages = [{ role: 'user', content: 'hi' }];
  const none = chatTokenizer({});
  assert.equal(none.canRenderChat, false);
  assert.throws(() => none.renderChat(messages), { code: 'ModelUnsupported', message: /no chat template/ });
  const forTools = chatTokenizer({ chat_template: [{ name: 'tool_use', template: hermes }] });
  assert.throws(() => forTools.renderChat(messages), { code: 'ModelUnsupported', message: /tools alone/ });
  assert.ok(forTools.renderChat(messages, { tools: [] }).length > 0);
});

function rendered(tokenizer: ChatTokenizer, conversation: Omit<ChatCase, 'text' | 'ids' | 'error'>): string {
  const { messages, tools, kwargs, add_generation_prompt: addGenerationPrompt } = conversation;
  return tokenizer.renderChatText(messages, { tools, templateArguments: kwargs, addGenerationPrompt });
}
