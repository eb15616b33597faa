/** Numbers and the order of keys reach a prompt, a server and an environment as they were written; Python's own values are the measure. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { compileTemplate, renderBounded } from '../../engine/model/bounded-template.ts';
import { ChatTemplates } from '../../engine/model/chat-template.ts';
import { parseBoundedJson } from '../../engine/server/json.ts';
import { ChatCompletionRequest } from '../../engine/server/requests.ts';
import { parseExact, stringifyExact } from '../../engine/speech/exact-json.ts';
import { readLine } from '../../backends/environments/verifiers/protocol.ts';
import { chatMessage } from '../../backends/environments/verifiers/conversation.ts';

interface Golden {
  readonly templates: Readonly<Record<string, string>>;
  readonly values: readonly ({ readonly text: string } & Readonly<Record<string, string>>)[];
  readonly tool: { readonly text: string; readonly tojson: string };
}
const file = new URL('../data/written-numbers/golden.json', import.meta.url);
const { templates, values, tool } = JSON.parse(readFileSync(file, 'utf8')) as Golden;
const said = "{% set call = messages[0].tool_calls[0] %}{% set value = call['function'].arguments %}";
const render = (template: string, messages: object[], tools: object[] | null = null): string =>
  new ChatTemplates({ chat_template: template }, {}).render(messages as never, { tools, addGenerationPrompt: false });
const calling = (args: unknown) => ({
  role: 'assistant',
  content: '',
  tool_calls: [{ function: { name: 'f', arguments: args } }],
});

test('arguments that go back into a prompt are what Python makes of them', () => {
  for (const { text, ...right } of values)
    for (const [name, template] of Object.entries(templates))
      assert.equal(render(said + template, [calling(text)]), right[name], `${name} of ${text}`);
});

test('so are arguments that come as an object, to the policy server and from an environment', () => {
  for (const { text, tojson } of values.filter(({ text }) => !/NaN|Infinity/.test(text))) {
    const body = `{"model": "m", "temperature": 1.0, "messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": ${text}}}]}]}`;
    const { messages } = ChatCompletionRequest.parse(parseBoundedJson(Buffer.from(body)));
    assert.equal(render(said + templates['tojson'], messages), tojson);
    const line = `{"id": 1, "ok": true, "result": {"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": ${text}}]}}`;
    const { result } = readLine(line.replaceAll('\n', ' ')) as unknown as { result: Parameters<typeof chatMessage>[0] };
    assert.equal(render(said + templates['tojson'], [chatMessage(result)]), tojson);
  }
});

test('numbers and keys in the schema of a tool are those that were sent', () => {
  const body = `{"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [${tool.text}]}`;
  const { tools } = ChatCompletionRequest.parse(parseBoundedJson(Buffer.from(body)));
  const template = '{{ tools[0] | tojson }}';
  assert.equal(render(template, [{ role: 'user', content: 'a' }], tools), tool.tojson);
  const asked = readLine(
    `{"event": "sample", "request": 1, "sample": 1, "messages": [], "tools": [${tool.text}], "sampling": {}}`,
  );
  const [offered] = (asked as unknown as { tools: object[] }).tools;
  assert.equal(render(template, [], [offered!]), tool.tojson);
  // To a server, in the bytes that came but for blanks between them.
  const sent = stringifyExact({ model: 'm', tools: [{ ...offered }] });
  assert.equal(sent, `{"model":"m","tools":[${tool.text.replaceAll(/(?<=[:,]) /g, '')}]}`);
});

test('what JavaScript holds is parsed and written as ever', () => {
  const plain = '{"a":[1,2.5,-3,{"b":"1.0 and \\"10\\": 5"}],"c":null}';
  assert.deepEqual(parseExact(plain), JSON.parse(plain));
  assert.equal(stringifyExact(parseExact(plain)), plain);
  assert.equal(stringifyExact({ a: undefined, b: [parseExact('[1.0]'), undefined] }), '{"b":[[1.0],null]}');
  assert.throws(() => parseExact('{"a":1.0'), SyntaxError);
  assert.deepEqual(parseExact('{"__proto__":{"a":1.0}}'), JSON.parse('{"__proto__":{"a":1}}'));
});

test('arguments that are no object of JSON, or hold a number without end, are refused', () => {
  for (const wrong of ['[1]', '7', '{"a":', '{"a":1} x'])
    assert.throws(() => render(said, [calling(wrong)]), {
      code: 'InferenceRejected',
      message: /"f" must be the JSON of an object/,
    });
  const endless = `{"a": ${'9'.repeat(5_000)}}`;
  assert.throws(() => render(said, [calling(endless)]), { code: 'InferenceRejected', message: /up to 4300 digits/ });
  assert.equal(renderBounded(compileTemplate('{{ a }}'), { a: parseExact('[1.0]') }), '[1.0]');
});
