import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { demonstrationRows } from '../../core/rl/rollout/demonstration-rows.ts';
import { samplesOf } from '../../learn/sft-rows.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { readSftData, type SftRow } from '../../load/data/sft-data.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import { sha256 } from '../../store/file-store.ts';
import { putJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { createPreset } from '../../engine/index.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import { act, ChainTrainer, makeRun, openRoles, type TestRun } from './runs.ts';

const { tokenizer } = createPreset('preset:reverse-text-0.2m', { seed: 0 });
/** A tokenizer whose template knows tools. */
const hermes = withTemplate(readFileSync(new URL('../engine/golden/chat/hermes.jinja', import.meta.url), 'utf8'));
const golden = JSON.parse(readFileSync(new URL('../data/algorithms/golden.json', import.meta.url), 'utf8')) as {
  readonly sftRows: readonly {
    readonly row: object;
    readonly messages: readonly Partial<SftRow['messages'][number]>[];
    readonly tools: readonly object[];
  }[];
};

function withTemplate(chatTemplate: string): ChatTokenizer {
  const folder = new URL('../engine/golden/tokenizers/byte-fallback/', import.meta.url);
  const read = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
  return new ChatTokenizer(
    { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json'), chatTemplate },
    'x',
  );
}

async function folderWith(t: TestContext, files: Readonly<Record<string, string>>): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-sft-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
  return folder;
}

const lines = (rows: readonly object[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join('');
const words = ['cat', 'dog', 'sun', 'map', 'pen', 'owl', 'ink'];
const data = lines(words.map((word) => ({ prompt: word, completion: word.split('').reverse().join('') })));

describe('a file of supervised rows', () => {
  test('messages, prompt and completion as texts, and as messages, are the same rows', async (t) => {
    const user = { role: 'user', content: 'cat' };
    const assistant = { role: 'assistant', content: 'tac' };
    const folder = await folderWith(t, {
      'a.jsonl': lines([{ messages: [user, assistant] }]),
      'b.jsonl': lines([{ prompt: 'cat', completion: 'tac', source: 'a key of the user’s own' }]),
      'c.jsonl': `\n${lines([{ prompt: [user], completion: [assistant] }])}\n`,
    });
    const read = async (name: string) => (await readSftData(path.join(folder, name))).bytes;
    const samples = (bytes: Uint8Array) => samplesOf(JSON.parse(Buffer.from(bytes).toString()), tokenizer);
    const [a, b, c] = await Promise.all(['a.jsonl', 'b.jsonl', 'c.jsonl'].map(read));
    assert.deepEqual(samples(a!), samples(b!));
    assert.deepEqual(Buffer.from(b!).toString(), Buffer.from(c!).toString());
  });

  test('conversations with tools are read as prime-rl reads them, as TRL’s and verifiers’ rows have them', async (t) => {
    for (const [i, { row, messages, tools }] of golden.sftRows.entries()) {
      const folder = await folderWith(t, { [`${i}.jsonl`]: lines([row]) });
      const { bytes } = await readSftData(path.join(folder, `${i}.jsonl`));
      const read = JSON.parse(Buffer.from(bytes).toString()) as SftRow;
      assert.deepEqual(
        read.messages.map(({ tool_calls: calls, ...message }) => ({
          ...message,
          ...(calls ? { tool_calls: calls } : {}),
        })),
        messages.map((message) => ({ content: '', ...message })),
      );
      assert.deepEqual(read.tools ?? [], tools);
    }
  });

  test('what of a row with tools is wrong is told, too', async (t) => {
    const call = (arguments_: unknown) => ({
      role: 'assistant',
      tool_calls: [{ function: { name: 'f', arguments: arguments_ } }],
    });
    const user = { role: 'user', content: 'x' };
    const rows = [
      { messages: [user, call('{no')] },
      { messages: [user, call([1])] },
      { messages: [user, call({})], tools: 'f' },
      { messages: [user, call({})], tools: [{ description: 'nameless' }] },
      {
        messages: [
          { ...call({}), role: 'user' },
          { role: 'assistant', content: 'x' },
        ],
      },
    ];
    const folder = await folderWith(t, { 'x.jsonl': lines(rows) });
    await assert.rejects(readSftData(path.join(folder, 'x.jsonl')), (error: Error) => {
      const told = error.message.split('\n').slice(1);
      assert.deepEqual(
        told.map((line) =>
          line
            .trim()
            .replace(/^.*jsonl:/, '')
            .replace(/Invalid.*/, '…'),
        ),
        [
          '1: messages[1].tool_calls[0].function.arguments: …',
          '2: messages[1].tool_calls[0].function.arguments: …',
          '3: tools that are a text and no JSON',
          '4: tools that are no list of functions with names',
          '5: tool_calls of another than the assistant',
        ],
      );
      return true;
    });
  });

  test('calls of tools are learned as the chat template writes them, and what tools answered is not', () => {
    const { messages, tools } = golden.sftRows[0]!;
    const row = { messages: messages.map((message) => ({ content: '', ...message })), from: 0, tools } as SftRow;
    const samples = samplesOf(row, hermes);
    const learned = samples.map(({ tokenIds, lossMask }) =>
      hermes.decode(tokenIds.filter((_, i) => lossMask[i] === 1)),
    );
    const said = learned.join('');
    assert.match(said, /<tool_call>[\s\S]*"name": "add"[\s\S]*<\/tool_call>/);
    assert.match(said, /It is 5\./);
    assert.ok(!said.includes('tool_response') && !said.includes('2 and 3'), said);
    const [{ tokenIds }] = samples as [TrainSample];
    const whole = hermes.renderChatText(row.messages, { addGenerationPrompt: false, tools });
    assert.ok(
      hermes
        .encode(whole)
        .slice(0, tokenIds.length)
        .every((id, i) => id === tokenIds[i]),
      'the template’s tokens',
    );
    assert.throws(() => samplesOf(row, tokenizer), /writes no calls of tools, and an answer calls add/);
  });

  test('conversations under a template that leaves earlier thoughts out are the samples that prime-rl has of them', async (t) => {
    const home = new URL('../data/golden-runs/', import.meta.url);
    const read = (name: string): string => readFileSync(new URL(name, home), 'utf8');
    const [file, config] = ['tokenizer.json', 'tokenizer_config.json'].map((name) => read(`tiny-chat/${name}`));
    const files = { tokenizer: file!, config: config!, chatTemplate: read('qwen3.jinja') };
    const qwen3 = new ChatTokenizer(files, 'qwen3');
    const recorded = JSON.parse(read('conversations.json')) as Record<'messages' | 'tokens' | 'mask', unknown>[];
    const folder = await folderWith(t, { 'x.jsonl': lines(recorded.map(({ messages }) => ({ messages }))) });
    const { bytes } = await readSftData(path.join(folder, 'x.jsonl'));
    const rows = Buffer.from(bytes).toString().trim().split('\n');
    assert.equal(rows.length, recorded.length);
    for (const [i, row] of rows.entries()) {
      const samples = samplesOf(JSON.parse(row) as SftRow, qwen3, { isWhole: true });
      const { tokens, mask } = recorded[i]!;
      assert.deepEqual(
        samples.map(({ tokenIds, lossMask }) => ({ tokens: tokenIds, mask: lossMask })),
        [{ tokens, mask }],
        row,
      );
    }
  });

  test('thoughts that the chat template does not write are refused: the answer would be learned without them', () => {
    const thought = { role: 'assistant', content: 'tac', reasoning_content: 'from behind' } as const;
    const row = { messages: [{ role: 'user', content: 'cat' }, thought], from: 0 } as const;
    assert.throws(() => samplesOf(row, tokenizer), /template writes no reasoning_content, and an answer has it/);
  });

  test('what is wrong is told with the number of its line', async (t) => {
    const folder = await folderWith(t, {
      'x.jsonl': [
        '{"prompt": "cat", "completion": "tac"}',
        '{"prompt": "cat"}',
        'no json',
        '{"messages": [{"role": "user", "content": "cat"}]}',
        '{"messages": [{"role": "wizard", "content": "cat"}]}',
        '{"text": "cat"}',
        '{"prompt": "cat", "completion": ""}',
        '[1]',
      ].join('\n'),
      'empty.jsonl': '\n\n',
    });
    const file = path.join(folder, 'x.jsonl');
    await assert.rejects(readSftData(file), (error: Error) => {
      const told = error.message.split('\n').slice(1);
      assert.deepEqual(
        told.map((line) =>
          line
            .trim()
            .replace(`${file}:`, '')
            .replace(/Invalid.*/, '…'),
        ),
        [
          '2: no "completion"',
          '3: no JSON',
          '4: no assistant message to learn',
          '5: messages[0].role: …',
          '6: only the keys text',
          '7: an assistant message without text',
          '8: no object',
        ],
      );
      return true;
    });
    await assert.rejects(readSftData(path.join(folder, 'empty.jsonl')), /expected at least one line/);
    await assert.rejects(readSftData(path.join(folder, 'none.jsonl')), /there is no such file/);
  });

  test('only what the assistant says counts in the loss, in every turn that is not context', () => {
    const conversation = [
      { role: 'user', content: 'cat' },
      { role: 'assistant', content: 'tac' },
      { role: 'user', content: 'dog' },
      { role: 'assistant', content: 'god' },
    ] as const;
    const learned = (from: number): string[] =>
      samplesOf({ messages: conversation, from }, tokenizer).map(({ tokenIds, lossMask }) =>
        tokenizer.decode(
          tokenIds.filter((_, i) => lossMask[i] === 1),
          { skipSpecialTokens: true },
        ),
      );
    assert.deepEqual(learned(0).join(''), 'tacgod');
    assert.deepEqual(learned(2).join(''), 'god');
    const [row] = samplesOf({ messages: conversation, from: 3 }, tokenizer);
    const prompt = tokenizer.renderChat(conversation.slice(0, 3));
    assert.deepEqual(row!.tokenIds.slice(0, prompt.length), prompt, 'an answer follows the very tokens of its prompt');
    assert(tokenizer.isSpecial(row!.tokenIds[row!.lossMask.lastIndexOf(1)]!), 'the end of a turn is learned');
  });
});

test('an answer has the tokens it has behind its prompt: a tokenizer that marks words puts no blank before it', () => {
  const folder = new URL('../engine/golden/tokenizers/byte-fallback/', import.meta.url);
  const read = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
  const chatTemplate = `{%- for m in messages -%}{%- if m.role == 'assistant' -%}{{ m.content + '</s>' }}{%- else -%}{{ '<s>[INST] ' + m.content + ' [/INST]' }}{%- endif -%}{%- endfor -%}`;
  const files = { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json'), chatTemplate };
  const marking = new ChatTokenizer(files, 'byte-fallback');
  const messages = [
    { role: 'user', content: 'hello' },
    { role: 'assistant', content: 'good' },
    { role: 'user', content: 'more' },
    { role: 'assistant', content: 'words' },
  ] as const;
  assert.notDeepEqual(marking.encode('good</s>'), marking.encodeAfter('<s>[INST] hello [/INST]', 'good</s>'));
  const [row, ...others] = samplesOf({ messages, from: 0 }, marking);
  assert.equal(others.length, 0);
  const [shown] = demonstrationRows(marking, messages.slice(0, 1), messages.slice(1));
  assert.deepEqual(row!.tokenIds, marking.encode(marking.renderChatText(messages, { addGenerationPrompt: false })));
  assert.deepEqual([row!.tokenIds, row!.lossMask], [shown!.tokenIds, shown!.lossMask]);
});

const settings = { 'sft.steps': '120', 'sft.batch_size': '2', 'sft.learning_rate': '0.001', max_steps: '0' };

/** A run with rows of its own, as opening it leaves it. */
async function supervisedRun(t: TestContext, text = data): Promise<TestRun> {
  const file = path.join(await folderWith(t, { 'rows.jsonl': text }), 'rows.jsonl');
  const { bytes } = await readSftData(file);
  const made = await makeRun(t, { ...settings, 'sft.data': file });
  const spec = { ...made.spec, sft: { ...made.spec.sft!, data: { path: file, sha256: sha256(bytes) } } };
  await made.store.put(layout.sftData(), bytes);
  return { ...made, spec, run: { ...made.run, spec: await putJson(made.store, 'specs/test.json', spec) } };
}

describe('a supervised run', () => {
  test('that loses its trainer after every segment ends with the weights of an undisturbed one', async (t) => {
    const [undisturbed, disturbed] = [await supervisedRun(t), await supervisedRun(t)];
    const roles = openRoles();
    let warm = await act(roles.warmUp, { run: undisturbed.run, from: null });
    while (warm.step < 120) warm = await act(roles.warmUp, { run: undisturbed.run, from: warm });
    let again = await act(openRoles().warmUp, { run: disturbed.run, from: null });
    while (again.step < 120) again = await act(openRoles().warmUp, { run: disturbed.run, from: again });
    assert.equal(again.policy.digest, warm.policy.digest);
    assert.equal(roles.trainers.at(-1)?.trained.length, 120);
  });

  test('learns each row once an epoch', async (t) => {
    const test = await supervisedRun(t);
    const seen: string[] = [];
    class Listening extends ChainTrainer {
      override sftStep(input: Parameters<ChainTrainer['sftStep']>[0]) {
        seen.push(...input.samples.map(({ tokenIds }) => tokenizer.decode(tokenIds)));
        return super.sftStep(input);
      }
    }
    const roles = openRoles(undefined, { makeTrainer: () => new Listening() });
    const base = await act(roles.warmUp, { run: test.run, from: null });
    await act(roles.warmUp, { run: test.run, from: base });
    for (let epoch = 0; epoch < 14; epoch += 1) {
      const learned = seen.slice(7 * epoch, 7 * (epoch + 1));
      assert.equal(new Set(learned).size, 7, `epoch ${epoch}: ${learned.join(' | ')}`);
    }
  });

  test('refuses rows that are longer than the model, by their number, before it trains', async (t) => {
    const test = await supervisedRun(t, data + lines([{ prompt: 'cat', completion: 'tac'.repeat(40) }]));
    await assert.rejects(
      act(openRoles().warmUp, { run: test.run, from: null }),
      /row 8 of .* has \d+ tokens; the model takes 64/,
    );
  });

  test('continues with the rows it began with when the file changes or goes away', async (t) => {
    const config = `model = "preset:reverse-text-0.2m"\nmax_steps = 0\n[sft]\nsteps = 4\nwarmup_steps = 0\ndata = "./rows.jsonl"\n`;
    const folder = await folderWith(t, { 'run.toml': config, 'rows.jsonl': data });
    const load = () => loadRunConfig('run.toml', { projectFolder: folder });
    const first = await load();
    assert.equal(first.spec.sft?.data?.sha256, sha256(first.sftRows!));
    const { openRun } = openRoles(undefined, { projectFolder: folder });
    const opened = await openRun('run.toml', 'words', 'e1');
    await writeFile(path.join(folder, 'rows.jsonl'), lines([{ prompt: 'a', completion: 'b' }]));
    const changed = await load();
    assert.deepEqual([changed.spec.sft?.data, changed.sftRows], [first.spec.sft?.data, null]);
    assert.match(changed.warnings.join('\n'), /rows.jsonl has changed since this run began/);
    await rm(path.join(folder, 'rows.jsonl'));
    const again = await openRun('run.toml', 'words', 'e2');
    assert.deepEqual(again.spec, opened.spec);
    const kept = await readFile(path.join(folder, 'outputs/run', layout.sftData()));
    assert.equal(sha256(kept), opened.spec.sft?.data?.sha256);
    await assert.rejects(loadRunConfig('run.toml', { projectFolder: folder, run: 'another' }), /there is no such file/);
  });
});
