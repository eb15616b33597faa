/** Numbers and the order of keys reach a prompt, a server and an environment as they were written; Python's own values are the measure. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';
import { ChatTemplates } from '../../engine/model/template/chat-template.ts';
import { parseBoundedJson } from '../../engine/server/json.ts';
import { ChatCompletionRequest } from '../../engine/server/requests.ts';
import { parseExact, stringifyExact } from '../../core/exact-json.ts';
import { readLine } from '../../backends/environments/verifiers/protocol.ts';
import { resultRow } from '../../core/rl/rollout/results.ts';
import { goodRowsByExample, rolloutOfRow } from '../../core/eval/verifiers-results.ts';
import type { Example, Rollout, RolloutRow, ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { readSftData, type SftRow } from '../../load/data/sft-data.ts';
import { openInputs } from '../../backends/environments/verifiers/inputs.ts';
import { decodeRows, encodeRows, rowLike, rowOfOthers } from '../../store/objects.ts';
import { decodeStoredRows, encodeStoredRows } from '../../runs/forms/stored-forms.ts';
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

test('numbers among the variables of a template are those that were sent', () => {
  const variables = '{"whole": 2.0, "large": 12345678901234567890, "small": 1e-7, "10": "ten", "list": [1.0, 1]}';
  const body = `{"model": "m", "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": ${variables}}`;
  const { messages, chat_template_kwargs: given } = ChatCompletionRequest.parse(parseBoundedJson(Buffer.from(body)));
  const templates = new ChatTemplates({ chat_template: '{{ whole }} {{ large }} {{ small }} {{ list }}' }, {});
  const text = templates.render(messages, { addGenerationPrompt: false, templateArguments: given ?? {} });
  assert.equal(text, '2.0 12345678901234567890 1e-07 [1.0, 1]');
});

const info =
  '{"large":12345678901234567890,"one":1.0,"many":1e22,"below":-0.0,"10":[2.50,{"b":7,"1":1e-7}],"text":"1.0"}';
const fileOf = (t: { after: (done: () => void) => void }, name: string, text: string): string => {
  const folder = mkdtempSync(path.join(tmpdir(), 'written-numbers-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  writeFileSync(path.join(folder, name), text);
  return path.join(folder, name);
};

test('rows of a dataset reach info, answer and the calls of a prompt as they were written', async (t) => {
  const prompt = `[{"role":"assistant","content":null,"tool_calls":[{"id":"a","name":"f","arguments":${info}}]}]`;
  const lines = ['1.0', '12345678901234567890', '1e22', '-0.0', '{"2":1.0,"1":2}', '"1.0"', 'null'].map(
    (answer) => `{"prompt":${prompt},"answer":${answer},"info":${info},"example_id":0}\n`,
  );
  const inputs = await openInputs(fileOf(t, 'inputs.jsonl', lines.join('')));
  t.after(() => inputs.close());
  const examples = lines.map((_, i) => inputs.at(i));
  const right = ['1.0', '12345678901234567890', '1e22', '-0.0', '{"2":1.0,"1":2}', '1.0', ''];
  assert.deepEqual(examples.map(({ answer }) => answer), right); // prettier-ignore
  assert.equal(stringifyExact(examples[0]!.info), info);
  assert.equal(examples[0]!.prompt[0]!.tool_calls![0]!.function.arguments, info);
  // Through the store, with the group that it is the example of.
  const key = 'rollouts/step_3/groups_5-6/chunk_1_of_2_from_5.scored.jsonl.gz';
  const [stored] = decodeStoredRows<{ example: Example }>(encodeStoredRows(key, [{ example: examples[0]! }]), key);
  assert.equal(stringifyExact(stored!.example.info), info);
});

const scored = (record: RolloutRow): ScoredRollout => ({
  group: 0,
  index: 0,
  exampleId: 0,
  turns: [],
  outcome: 'ok',
  reward: 1,
  metrics: { good: 1 },
  record,
});

test('a row that an environment wrote gets into results.jsonl, and out of it, as it was written', () => {
  const row = `{"example_id":12345678901234567,"prompt":[],"completion":[],"answer":5.0,"info":${info},"state_columns":{"count":98765432109876543210,"share":1.0}}`;
  const reply = readLine(`{"id":1,"ok":true,"result":{"row":${row}}}`) as unknown as { result: { row: RolloutRow } };
  const rollout: Rollout = { group: 0, index: 0, exampleId: 0, turns: [], outcome: 'ok', record: reply.result.row };
  const key = 'rollouts/step_3/groups_5-6/chunk_1_of_2/part_1.jsonl';
  const [stored] = decodeStoredRows<Rollout>(encodeStoredRows(key, [rollout]), key);
  const { record } = stored!;
  assert.equal(stringifyExact(record), row);
  const made = rowLike(
    resultRow(scored(record!), { example: { id: 0, prompt: [], answer: '' }, record, place: {} }),
    record,
  );
  const line = Buffer.from(encodeRows([made])).toString();
  assert.ok(line.startsWith('{"example_id":12345678901234567,"prompt":[],"completion":[],"answer":5.0,'), line);
  for (const piece of [`"info":${info}`, '"reward":1,', '"count":98765432109876543210', '"share":1.0'])
    assert.ok(line.includes(piece), `${piece} in ${line}`);
  // The form of a group in an evaluation, and of another program's adopted results.
  const examples = 'evals/words--run/step_3/rollouts/chunk_0/attempt_1/rows_1.jsonl';
  const [example] = decodeStoredRows<{ rows: RolloutRow[] }>(
    encodeStoredRows(examples, [{ group: 0, rows: [made] }]),
    examples,
  );
  assert.equal(Buffer.from(encodeRows(example!.rows)).toString(), line);
  const [[theirs]] = [...goodRowsByExample(line, rowOfOthers).values()] as [RolloutRow[]];
  assert.equal(Buffer.from(encodeRows([theirs!])).toString(), line);
  const adopted = rolloutOfRow(theirs!, { group: 0, index: 0, exampleId: 0 });
  assert.equal(stringifyExact(adopted.record), line.trim());
});

test('calls and tools of supervised rows are learned as they were written', async (t) => {
  const tools =
    '[{"type":"function","function":{"name":"f","description":"","parameters":{"default":1.0,"most":12345678901234567890}}}]';
  const called = (args: string) =>
    `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":${args}}}]}],"tools":${JSON.stringify(tools)}}\n`;
  const text = called(info) + called(JSON.stringify(info)) + called('{}');
  const { bytes } = await readSftData(fileOf(t, 'rows.jsonl', text));
  const rows = decodeRows<SftRow>(bytes, 'sft/data.jsonl');
  for (const { messages, tools: offered } of rows.slice(0, 2)) {
    assert.equal(stringifyExact(messages[1]!.tool_calls![0]!.function.arguments), info);
    assert.equal(stringifyExact(offered), tools);
    const template = '{{ messages[1].tool_calls[0].function.arguments | tojson }}{{ tools | tojson }}';
    const spaced = (json: string) =>
      json
        .replaceAll(/([:,])(?=["\d[{-])/g, '$1 ')
        .replace('2.50', '2.5')
        .replace('1e22', '1e+22')
        .replace('1e-7', '1e-07');
    assert.equal(render(template, [...messages], [...offered!]), spaced(info) + spaced(tools));
  }
});
