/** Datasets of the Hugging Face Hub as rows of [sft]: which files have them, how they come here, and what a run file makes of them. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, beforeEach, describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { readSftData, type SftRow } from '../../load/data/sft-data.ts';
import { filesOfPart, missingShards } from '../../backends/hub/dataset-files.ts';
import { findCachedDataset, getDataset } from '../../backends/hub/get-dataset.ts';
import type { HubSettings } from '../../backends/hub/hub-settings.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { repositoryOf, startHub, type StandInHub } from '../stand-ins/hub.ts';

const recorded = fileURLToPath(new URL('../data/hub-rows', import.meta.url));
const id = 'ratchet/rows';
const train = { id, subset: null, split: 'train' };

let hub: StandInHub;
before(async () => (hub = await startHub()));
after(() => hub.close());
beforeEach(() => {
  (hub.requests as string[]).length = 0;
  hub.breaks.length = 0;
  const { files, commit } = repositoryOf(recorded);
  const rows = [...files].flatMap(([name, bytes]) =>
    name.endsWith('.parquet') ? [[`data/${name}`, bytes] as const] : [],
  );
  const code = Buffer.from('raise SystemExit');
  hub.models.set(`datasets/${id}`, {
    commit,
    files: new Map([...rows, ['rows.py', code], ['README.md', Buffer.from('# Rows')]]),
  });
});

function settingsIn(t: TestContext, more: Partial<HubSettings> = {}): HubSettings {
  const cache = mkdtempSync(path.join(tmpdir(), 'hub-data-'));
  t.after(() => rmSync(cache, { recursive: true, force: true }));
  return { endpoint: hub.url, cache, isOffline: false, token: null, ...more };
}

const rowsIn = (bytes: Uint8Array): SftRow[] =>
  Buffer.from(bytes)
    .toString()
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as SftRow);

test('the files of a split come into the cache as other tools have them, and are found there without a hub', async (t) => {
  const settings = settingsIn(t);
  assert.equal(findCachedDataset(settings, train), null);
  const got = await getDataset(settings, train);
  assert.equal(got.folder, path.join(settings.cache, `datasets--ratchet--rows/snapshots/${'a'.repeat(40)}`));
  assert.deepEqual(readdirSync(got.folder).toSorted(), ['README.md', 'data']);
  assert.deepEqual(
    got.files.map((file) => path.basename(file)),
    ['train-00000-of-00002.parquet', 'train-00001-of-00002.parquet'],
  );
  assert.deepEqual(findCachedDataset(settings, train), got);
  const asked = hub.requests.length;
  assert.deepEqual(await getDataset({ ...settings, isOffline: true }, train), got);
  assert.equal(hub.requests.length, asked);
  await assert.rejects(getDataset({ ...settings, isOffline: true }, { ...train, split: 'test' }), {
    code: 'ModelUnsupported',
    message: /ratchet\/rows \(split test\) is not in .* HF_HUB_OFFLINE/,
  });
  rmSync(got.files[1]!);
  assert.equal(findCachedDataset(settings, train), null, 'a shard is missing');
});

test('what is gated, renamed or not there is said as of models', async (t) => {
  const at = hub.models.get(`datasets/${id}`)!;
  hub.models.set(`datasets/${id}`, { ...at, gate: 'hf_x' });
  await assert.rejects(getDataset(settingsIn(t), train), {
    message: /is gated: .*\/datasets\/ratchet\/rows.*hf auth login/,
  });
  const token = { value: 'hf_x', from: 'HF_TOKEN' };
  assert.equal((await getDataset(settingsIn(t, { token }), train)).files.length, 2);
  await assert.rejects(getDataset(settingsIn(t), { ...train, id: 'ratchet/none' }), { message: /is not there/ });
});

test('rows of Parquet are those of lines: nested calls, missing values and large numbers among them', async (t) => {
  const { files } = await getDataset(settingsIn(t), train);
  const { rows, bytes } = await readSftData(files);
  const found = rowsIn(bytes);
  assert.equal(rows, 4);
  assert.deepEqual(
    found.slice(0, 3).map(({ messages }) => messages.map(({ content }) => content)),
    [
      ['cat', 'tac'],
      ['dog', 'god'],
      ['sun', 'nus'],
    ],
  );
  assert.deepEqual(found[3]!.messages[1]!.tool_calls?.[0]?.function.arguments, { a: 2, b: 3 });
  const broken = path.join(settingsIn(t).cache, 'broken.parquet');
  writeFileSync(broken, 'PAR1 and no more');
  await assert.rejects(readSftData(broken), { code: 'ConfigInvalid', message: /no Parquet that can be read here/ });
});

describe('a run file', () => {
  const text = (more = ''): string =>
    `model = "preset:reverse-text-0.2m"\nmax_steps = 0\n[sft]\ndata = "${id}"\nsteps = 2\n${more}`;

  test('names a dataset, which is found in the cache or said to be missing with what fetches it', async (t) => {
    const settings = settingsIn(t);
    const folder = settingsIn(t).cache;
    const file = path.join(folder, 'run.toml');
    writeFileSync(file, text());
    const before = process.env['HF_HUB_CACHE'];
    process.env['HF_HUB_CACHE'] = settings.cache;
    t.after(() => {
      if (before === undefined) delete process.env['HF_HUB_CACHE'];
      else process.env['HF_HUB_CACHE'] = before;
    });
    const load = () => loadRunConfig(file, { projectFolder: folder, isOnlyLookedAt: true });
    const missing = await load();
    assert.match(missing.problems[0]!.received, /^ratchet\/rows \(split train\), which is not in that cache/);
    assert.match(
      missing.problems[0]!.suggestion!,
      /npx ratchet-rl model get ratchet\/rows --dataset, or train with --yes/,
    );
    assert.deepEqual(missing.spec.sft?.data, { path: id, sha256: null, hub: { subset: null, split: 'train' } });
    await getDataset(settings, train);
    const loaded = await load();
    assert.deepEqual(loaded.problems, []);
    assert.match(loaded.spec.sft!.data!.sha256!, /^[0-9a-f]{64}$/);
    assert.equal(rowsIn(loaded.sftRows!).length, 4);
  });

  test('says a part of a dataset alone, and a file by its ending', () => {
    const parsed = parseRunConfig(text('subset = "main"\nsplit = "test"\n'), { file: 'run.toml' });
    assert.ok(parsed.ok);
    assert.deepEqual(parsed.spec.sft?.data?.hub, { subset: 'main', split: 'test' });
    for (const [data, at] of [
      ['./rows.parquet', 'sft.split'],
      ['rows.csv', 'sft.data'],
    ] as const) {
      const wrong = parseRunConfig(text('split = "test"\n').replace(id, data), { file: 'run.toml' });
      assert.ok(!wrong.ok);
      const places = wrong.problems.map(({ path: where }) => where);
      assert.ok(places.includes(at), places.join());
    }
  });
});

test('the card of a dataset says which files make which split', async (t) => {
  const card = `---
configs:
- config_name: chat
  default: true
  data_files:
  - split: train
    path: data/train-*
  - split: held
    path: ["data/test-0000?-of-*.parquet"]
- config_name: all
  data_dir: data
  data_files: "**"
license: mit
---
# Rows
`;
  const { files, commit } = hub.models.get(`datasets/${id}`)!;
  const withCard = new Map([...files, ['README.md', Buffer.from(card)] as const]);
  hub.models.set(`datasets/${id}`, { commit, files: withCard });
  const settings = settingsIn(t);
  const got = await getDataset(settings, train);
  assert.equal(got.files.length, 2);
  assert.deepEqual(findCachedDataset(settings, train), got);
  assert.equal(findCachedDataset(settings, { ...train, subset: 'all' }), null, 'not all of it is here');
  const all = await getDataset(settings, { ...train, subset: 'all' });
  assert.ok(all.files.length > 2);
  const names = [...files.keys()];
  const of = (subset: string | null, split: string, told = card): readonly string[] | string => {
    try {
      return filesOfPart(id, names, { subset, split }, told);
    } catch (error) {
      return (error as Error).message;
    }
  };
  assert.deepEqual(
    of('chat', 'held'),
    names.filter((name) => /test-0000.-of-/.test(name)),
  );
  assert.match(of(null, 'test') as string, /no split "test"; it has train, held/);
  assert.match(of('other', 'train') as string, /no subset "other"; it has chat, all/);
  assert.match(of(null, 'train', card.replace('  default: true\n', '')) as string, /sft\.subset = one of chat, all/);
  assert.match(
    of('chat', 'train', card.replace('train-*', 'rows-*')) as string,
    /found no file that is called data\/rows/,
  );
  assert.match(
    of(null, 'train', card.replace('- split: train', '- part: train')) as string,
    /The card of ratchet\/rows .* configs\[0\]/,
  );
  assert.match(of(null, 'train', card.replace('license: mit', 'license: [')) as string, /its YAML cannot be read/);
  // Without a word of files their names say it.
  assert.deepEqual(of(null, 'train', '---\nlicense: mit\n---\n'), of(null, 'train', '# Rows'));
});

test('files of a part are told by their names', () => {
  const names = (files: readonly string[], subset: string | null, split: string): readonly string[] | string => {
    try {
      return filesOfPart('o/n', files, { subset, split });
    } catch (error) {
      return (error as Error).message;
    }
  };
  const gsm8k = [
    'README.md',
    'main/test-00000-of-00001.parquet',
    'main/train-00000-of-00001.parquet',
    'socratic/train-00000-of-00001.parquet',
  ];
  assert.deepEqual(names(gsm8k, 'main', 'train'), ['main/train-00000-of-00001.parquet']);
  assert.match(names(gsm8k, null, 'train') as string, /several subsets: expected sft\.subset = one of main, socratic/);
  assert.match(names(gsm8k, 'other', 'train') as string, /no subset "other"; it has main, socratic/);
  assert.match(names(gsm8k, 'socratic', 'test') as string, /no split "test"; it has train/);
  const chat = ['data/train_sft-00000-of-00001.parquet', 'data/test_sft-00000-of-00001.parquet'];
  assert.deepEqual(names(chat, null, 'train_sft'), ['data/train_sft-00000-of-00001.parquet']);
  assert.match(names(chat, null, 'train') as string, /it has test_sft, train_sft/);
  assert.deepEqual(
    names(['a.jsonl', 'b.jsonl'], null, 'train'),
    ['a.jsonl', 'b.jsonl'],
    'without names all is one split',
  );
  assert.deepEqual(names(['my-dev.jsonl', 'my-train.jsonl'], null, 'validation'), ['my-dev.jsonl']);
  assert.match(names(['a.csv'], null, 'train') as string, /no \.parquet and no \.jsonl files; it has a\.csv/);
  assert.match(names(['../../x/train.jsonl'], null, 'train') as string, /no \.parquet/, 'names stay below the folder');
  assert.deepEqual(missingShards(['d/train-00000-of-00003.parquet']), [
    'd/train-00001-of-00003.parquet',
    'd/train-00002-of-00003.parquet',
  ]);
});
