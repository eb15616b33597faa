/**
 * Looking at another user's run: nothing it links to is printed or copied, nothing in it blocks, and nothing is written
 * into it.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { after, before, test, type TestContext } from 'node:test';
import { evaluationsIn } from '../../load/evaluations/evaluation-folders.ts';
import { readSearchFolder } from '../../cli/gepa/search-folder.ts';
import { sinksOf } from '../../cli/stored/metrics-sinks.ts';
import { findEvaluations } from '../../runs/evaluations/folders.ts';
import { ResultFile } from '../../runs/evaluations/result-file.ts';
import { layout } from '../../runs/layout.ts';
import { searchFiles } from '../../runs/searches/search-results.ts';
import { CliProcess } from '../bad-input/cli-process.ts';
import { unpack } from '../data/older-runs/archive.mjs';
import { preset } from '../engine/models.ts';
import { saveModelFolder } from '../../engine/model/model-folder.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';

const canary = 'canary-of-the-user';
/** Passes for a row of metrics, an answer or a template: reading it would print it. */
const secretText = `{"step":1,"text":"${canary}","metrics":{"train/reward":0.5}}\n`;
const boundMs = 60_000;

const cli = new CliProcess();
let recorded: string;
before(async () => {
  recorded = await mkdtemp(path.join(tmpdir(), 'ratchet-strangers-'));
  unpack(recorded, 'nov-26-level-0-between');
});
after(async () => {
  cli.stop();
  await rm(recorded, { recursive: true, force: true });
});

interface Stage {
  /** Folder in which commands are typed. */
  readonly here: string;
  /** The store with the run `words`, by its name for `--store`. */
  readonly store: string;
  readonly run: string;
  readonly secret: string;
}

async function stage(t: TestContext): Promise<Stage> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-strangers-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const [here, store, secret] = ['here', 'theirs', 'secret'].map((name) => path.join(folder, name)) as [
    string,
    string,
    string,
  ];
  await mkdir(here);
  await cp(recorded, store, { recursive: true });
  await writeFile(secret, secretText);
  return { here, store, run: path.join(store, 'words'), secret };
}

async function contentOf(folder: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const file = path.join(entry.parentPath, entry.name);
    if (entry.isFile()) found[file] = await readFile(file, 'latin1');
    else if (entry.isSymbolicLink()) found[file] = `-> ${await readlink(file)}`;
    else found[file] = entry.isFIFO() ? 'FIFO' : 'folder';
  }
  return found;
}

function looks({ store }: Stage): string[][] {
  const at = ['--store', store];
  return [
    ['audit', 'words', ...at],
    ['audit', 'words', '--weights', ...at],
    ['report', 'words', ...at],
    ['report', path.join(store, 'words'), '-o', 'again.html'],
    ['status', 'words', ...at],
    ['runs', ...at],
    ['fsck', 'words', ...at],
    ['metrics', 'words', ...at],
    ['events', 'words', ...at],
    ['checkpoints', 'words', ...at],
    ['rollouts', 'words', '--step', '1', ...at],
    ['gc', 'words', ...at],
    ['advise', 'words', ...at],
    ['export', 'rollouts', 'words', '--jsonl', 'rollouts.jsonl', ...at],
    ['logs', 'words', 'train', '--outputs', store],
    ['eval', 'show', path.join(store, 'words')],
    ['model', 'export', 'words', '--merged', 'merged', ...at],
  ];
}

/** Does all of them; what they said, by command. */
async function lookAt(place: Stage): Promise<Map<string, string>> {
  const before = await contentOf(place.store);
  const said = new Map<string, string>();
  for (const args of looks(place)) {
    const name = args.filter((arg) => !arg.startsWith('/') && arg !== '--store').join(' ');
    const outcome = await cli.run(place.here, args, boundMs);
    assert.ok(outcome, `${name} never ended`);
    assert.ok(!outcome.text.includes(canary), `${name} told it:\n${outcome.text}`);
    assert.doesNotMatch(outcome.text, /^\s+at .*:\d+/m, `${name}:\n${outcome.text}`);
    said.set(name, outcome.text);
  }
  const now = await contentOf(place.store);
  // The first look through the rollouts builds their index.
  const changed = Object.keys({ ...before, ...now }).filter((file) => before[file] !== now[file]);
  assert.deepEqual(
    changed.map((file) => path.relative(place.run, file)).filter((key) => !/^index($|\/)/.test(key)),
    [],
    'nothing else was written into it',
  );
  for (const [file, content] of Object.entries(await contentOf(place.here)))
    assert.ok(!content.includes(canary), `${file} has it`);
  return said;
}

async function replaced(file: string, put: (file: string) => unknown): Promise<void> {
  await rm(file, { recursive: true, force: true });
  await mkdir(path.dirname(file), { recursive: true });
  await put(file);
}

const fifo = (file: string): unknown => execFileSync('mkfifo', [file]);
const tailPart = `metrics.jsonl.tail/${'999999'.padStart(15, '0')}`;

for (const [name, put, found] of [
  ['a link', (file: string, secret: string) => symlink(secret, file), /found a link/],
  ['a FIFO', (file: string) => fifo(file), /found a FIFO/],
] as const) {
  test(`${name} in the tail of a log is not followed and not waited for, by any command`, async (t) => {
    const place = await stage(t);
    await replaced(path.join(place.run, tailPart), (file) => put(file, place.secret));
    const said = await lookAt(place);
    for (const command of ['fsck words', 'metrics words']) {
      const lines = said
        .get(command)!
        .split('\n')
        .filter((line) => line.includes(tailPart));
      assert.equal(lines.length, 1, said.get(command));
      assert.match(lines[0]!, /expected a file with part of a log/);
      assert.match(lines[0]!, found);
    }
  });

  test(
    `${name} in place of each kind of file of a run is not followed and not waited for`,
    { timeout: 600_000 },
    async (t) => {
      const place = await stage(t);
      const files = Object.entries(await contentOf(place.run)).filter(([, content]) => content !== 'folder');
      const keys = files.map(([file]) => path.relative(place.run, file));
      const kinds = new Map<string, string>();
      for (const key of keys) if (path.extname(key) !== '') kinds.set(key.replaceAll(/\d+|[0-9a-f]{16,}/g, 'N'), key);
      kinds.delete('run.json');
      kinds.set('a log', 'logs/attempt_1/train.log');
      for (const key of kinds.values()) await replaced(path.join(place.run, key), (file) => put(file, place.secret));
      await lookAt(place);
    },
  );
}

test('a tail that is sound is read, and stays where it is', async (t) => {
  const place = await stage(t);
  const log = path.join(place.run, 'metrics.jsonl');
  const lines = (await readFile(log, 'utf8'))
    .trimEnd()
    .split('\n')
    .map((line) => `${line}\n`);
  const body = lines.slice(0, -1).join('');
  await writeFile(log, body);
  await mkdir(`${log}.tail`);
  await writeFile(path.join(`${log}.tail`, String(body.length).padStart(15, '0')), lines.at(-1)!);
  const said = await lookAt(place);
  assert.match(said.get('audit words')!, /words is sound/);
  const whole = await stage(t);
  const outcome = await cli.run(whole.here, ['metrics', 'words', '--store', whole.store], boundMs);
  assert.equal(said.get('metrics words'), outcome!.text);
});

test('a fork takes nothing of what the run that it comes from links to', async (t) => {
  const place = await stage(t);
  const from = { name: 'words', store: pathToFileURL(place.store).href };
  const { spec } = await storedSpec(from);
  const source = { config: 'words.toml', overrides: {} };
  const fork = (name: string) =>
    forkRun({ from, step: 3, source, spec: { ...spec, name, store: { uri: pathToFileURL(place.here).href } } });
  await fork('whole');
  const folder = path.join(place.run, 'weights/step_3');
  for (const [i, put] of [(file: string) => symlink(place.secret, file), fifo].entries()) {
    for (const name of [...(await readdir(folder)), 'chat_template.jinja']) {
      const file = path.join(folder, name);
      const kept = existsSync(file) ? await readFile(file) : null;
      await replaced(file, put);
      await assert.rejects(fork(`fork-${i}-${name.toLowerCase().replaceAll(/[^a-z0-9]/g, '-')}`), (error: Error) => {
        assert.match(error.message, new RegExp(name.replaceAll('.', '\\.')));
        assert.ok(!error.message.includes(canary));
        return true;
      });
      await rm(file);
      if (kept) await writeFile(file, kept);
    }
  }
  for (const [file, content] of Object.entries(await contentOf(place.here)))
    assert.ok(!content.includes(canary), `${file} has it`);
});

test('results, prompts and figures are read where they are, and not where a link leads', async (t) => {
  const { here, store, secret } = await stage(t);
  const folder = path.join(here, 'evals', 'words--model', 'own');
  await mkdir(folder, { recursive: true });
  const rows = path.join(folder, 'results.jsonl');
  await writeFile(rows, '{"example_id":0,"reward":1,"prompt":[],"completion":[]}\n');
  await writeFile(path.join(folder, 'metadata.json'), '{"env_id":"words","model":"model"}');
  const read = await new ResultFile(rows).read();
  assert.equal(read.rows.length, 1);
  const outside = /found a link that leads out of/;
  for (const [name, work] of [
    ['results.jsonl', () => new ResultFile(rows).read()],
    ['results.jsonl', () => read.row(0)],
    ['results.jsonl', () => read.search('x', new Set())],
  ] as const) {
    const file = path.join(folder, name);
    const kept = await readFile(file);
    await replaced(file, (at) => symlink(secret, at));
    await assert.rejects(work(), outside, name);
    await rm(file);
    await writeFile(file, kept);
  }
  assert.equal((await findEvaluations(here)).evaluations.length, 1);
  await replaced(path.join(folder, 'metadata.json'), (at) => symlink(secret, at));
  assert.deepEqual((await findEvaluations(here)).evaluations, []);
  assert.ok(!JSON.stringify(await evaluationsIn(path.dirname(folder))).includes(canary));

  await replaced(path.join(folder, searchFiles.rows), (at) => symlink(secret, at));
  await assert.rejects(readSearchFolder(folder), outside);
  await replaced(path.join(store, 'words', layout.sinks()), (at) => symlink(secret, at));
  const { sinksError } = await sinksOf('words', pathToFileURL(store).href);
  assert.match(sinksError!, outside);
});

test('a folder with a model is exported with nothing that it links to, and without waiting', async (t) => {
  const place = await stage(t);
  const model = path.join(place.here, 'model');
  await saveModelFolder(preset(), model);
  for (const name of ['model.safetensors', 'chat_template.jinja', 'config.json', 'tokenizer.json']) {
    for (const put of [(file: string) => symlink(place.secret, file), fifo]) {
      const file = path.join(model, name);
      const kept = existsSync(file) ? await readFile(file) : null;
      await replaced(file, put);
      const outcome = await cli.run(place.here, ['model', 'export', './model', '--merged', 'out'], boundMs);
      assert.ok(outcome, `${name}: never ended`);
      assert.notEqual(outcome.code, 0, outcome.text);
      assert.match(
        outcome.text,
        new RegExp(`${name.replaceAll('.', '\\.')}: expected a file, found a (link that leads out|FIFO)`),
      );
      assert.ok(!outcome.text.includes(canary), outcome.text);
      await rm(file);
      if (kept) await writeFile(file, kept);
    }
  }
  assert.ok(!existsSync(path.join(place.here, 'out', 'chat_template.jinja')));
});
