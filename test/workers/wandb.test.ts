import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { describe, test, type TestContext } from 'node:test';
import { appendMetrics } from '../../runs/metrics/metrics.ts';
import { readSinkStates, RunSinks } from '../../runs/metrics/run-sinks.ts';
import { openRunStore, type Store } from '../../store/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { wandbRunId, WandbSink } from '../../workers/metrics/wandb-sink.ts';
import { emptyHome } from '../../setup/clean-room.mjs';
import { filesBelow } from '../../setup/strays.mjs';
import { installPython } from '../python-here.ts';

const installed = await installPython('wandb-requirements.txt');

const canary = 'c4na7yc4na7yc4na7yc4na7yc4na7yc4na7yc4na7y';
const text =
  'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n[wandb]\nproject = "p"\nname = "n"\ntags = ["a"]\nmode = "offline"\n';

interface WandbRun {
  readonly store: Store;
  readonly folder: string;
  /** Home of the user whose processes feed the run. */
  readonly home: string;
  readonly open: () => { readonly sink: WandbSink; readonly sinks: RunSinks };
}

async function openRun(t: TestContext): Promise<WandbRun> {
  const outputs = await mkdtemp(path.join(tmpdir(), 'ratchet-wandb-'));
  t.after(() => rm(outputs, { recursive: true, force: true }));
  const uri = `${pathToFileURL(outputs).href}/`;
  const store = openRunStore(uri, 'words');
  const parsed = parseRunConfig(text, { file: 'words.toml' });
  assert(parsed.ok);
  const { spec } = parsed;
  const folder = path.join(outputs, 'words/wandb');
  const home = await mkdtemp(path.join(tmpdir(), 'ratchet-wandb-home-'));
  t.after(() => rm(home, { recursive: true, force: true }));
  const given = { RATCHET_CACHE: cacheOf(installed.python), WANDB_API_KEY: canary };
  const environment = { ...process.env, ...emptyHome(home), ...given };
  const opened: WandbSink[] = [];
  t.after(() => Promise.all(opened.map((sink) => sink.close())));
  return {
    store,
    folder,
    home,
    open() {
      const id = wandbRunId('words', uri, 'first');
      const sink = new WandbSink({ spec, wandb: spec.wandb!, id, folder, log: () => {}, environment });
      opened.push(sink);
      return { sink, sinks: new RunSinks(store, [sink], () => {}) };
    },
  };
}

/** The rows that W&B's own files hold, as [number, step, lineage], read with the package's own protocol buffers. */
async function readBack(folder: string): Promise<{ rows: number[][]; config: unknown[]; ids: string[] }> {
  const script = `
import glob, json, os, sys
sys.argv, folder = ["-"], sys.argv[1]
sys.path.insert(0, ${JSON.stringify(path.resolve('python'))})
import types, builtins
source = open(os.path.join(${JSON.stringify(path.resolve('python'))}, "ratchet_wandb.py")).read().rsplit("main()", 1)[0]
exec(source)
from wandb.proto import wandb_internal_pb2 as pb
rows, config, ids = [], [], []
for file in sorted(glob.glob(os.path.join(folder, "wandb", "offline-run-*", "*.wandb"))):
    for data in records(file):
        record = pb.Record(); record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append([record.history.step.num, found["step"], found["lineage"], found["train/reward"]])
        if kind == "run":
            ids.append(record.run.run_id); config.append([record.run.project, record.run.display_name, list(record.run.tags)])
print(json.dumps({"rows": rows, "config": config, "ids": ids}))
`;
  const { stdout } = await promisify(execFile)(installed.python, ['-c', script, folder]);
  return JSON.parse(stdout) as Awaited<ReturnType<typeof readBack>>;
}

async function addSteps(store: Store, from: number, to: number, lineage = 'main'): Promise<void> {
  for (let step = from; step < to; step += 1) {
    await appendMetrics(store, { step, lineage, time: new Date().toISOString(), 'train/reward': step / 64 });
  }
}

async function untilSent(sinks: RunSinks): Promise<void> {
  do {
    await sinks.advance();
    await new Promise((resolve) => setTimeout(resolve, 50));
  } while (!sinks.isUpToDate);
}

describe('a W&B run', { skip: installed.why }, () => {
  test('has every row once, whatever was killed between, in one run that a rewind continues in', async (t) => {
    const { store, folder, home, open } = await openRun(t);
    await addSteps(store, 0, 60);
    const first = open();
    await untilSent(first.sinks);
    process.kill(first.sink.pid!, 'SIGKILL'); // what W&B had not written yet is lost with it
    await addSteps(store, 60, 90);
    await untilSent(first.sinks);
    process.kill(first.sink.pid!, 'SIGKILL');

    const second = open(); // as after kill -9 of everything: only the store and W&B's files are left
    await second.sinks.restore();
    await untilSent(second.sinks);
    await addSteps(store, 51, 60, 'l2'); // taken back to step 50
    await untilSent(second.sinks);
    await second.sinks.close(true);

    const { rows, config, ids } = await readBack(folder);
    const main = Array.from({ length: 90 }, (_, step) => [step, step, 1, step / 64]);
    const rewound = Array.from({ length: 9 }, (_, i) => [90 + i, 51 + i, 2, (51 + i) / 64]);
    assert.deepEqual(
      rows.toSorted(([a = 0], [b = 0]) => a - b),
      [...main, ...rewound],
    );
    assert.equal(new Set(ids).size, 1);
    assert.deepEqual(config[0], ['p', 'n', ['a']]);
    const { wandb } = await readSinkStates(store);
    assert.deepEqual([wandb?.next, wandb?.isDone, wandb?.failing], [99, true, null]);
    for (const entry of await readdir(path.dirname(folder), { recursive: true, withFileTypes: true })) {
      if (!entry.isFile()) continue;
      const bytes = await readFile(path.join(entry.parentPath, entry.name));
      assert(!bytes.includes(canary), `the key is in ${entry.name}`);
    }
    assert.deepEqual([...filesBelow(home).keys()], [], 'W&B writes nothing in the home');
  });

  test('is said to be offline, and why, where it is to be online and there is no key', async (t) => {
    const { store, folder } = await openRun(t);
    const parsed = parseRunConfig(text.replace('"offline"', '"online"'), { file: 'words.toml' });
    assert(parsed.ok);
    const told: string[] = [];
    const { WANDB_API_KEY: _, ...environment } = process.env;
    const home = path.dirname(folder);
    const { spec } = parsed;
    const sink = new WandbSink({
      spec,
      wandb: spec.wandb!,
      id: 'offline',
      folder,
      log: (line) => void told.push(line),
      environment: { ...environment, HOME: home, RATCHET_CACHE: cacheOf(installed.python) },
    });
    await addSteps(store, 0, 2);
    const sinks = new RunSinks(store, [sink], () => {});
    await untilSent(sinks);
    await sinks.close(true);
    assert.match(told.join('\n'), /W&B: offline, since there is no WANDB_API_KEY where the processes start/);
    assert.equal((await readBack(folder)).rows.length, 2);
  });
});

test('a run whose machine has no Python trains on, and says what is missing', async (t) => {
  const { store, folder } = await openRun(t);
  const parsed = parseRunConfig(text, { file: 'words.toml' });
  assert(parsed.ok);
  const { spec } = parsed;
  const sink = new WandbSink({
    spec,
    wandb: spec.wandb!,
    id: 'none',
    folder,
    log: () => {},
    environment: { ...process.env, RATCHET_PYTHON: path.join(folder, 'no-python') },
  });
  const told: string[] = [];
  const sinks = new RunSinks(store, [sink], (line) => void told.push(line));
  await addSteps(store, 0, 2);
  await sinks.advance();
  assert.match(
    told.join('\n'),
    /wandb: Python 3.10 or newer is needed, but .*no-python does not run here \(named by RATCHET_PYTHON\)\. Install one/,
  );
  assert.match((await readSinkStates(store))['wandb']?.failing ?? '', /is needed/);
});

/** …/CACHE/python/NAME/bin/python */
function cacheOf(python: string): string {
  return path.resolve(python, '../../../..');
}
