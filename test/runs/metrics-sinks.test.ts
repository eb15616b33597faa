import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { get } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { describe, test, type TestContext } from 'node:test';
import { crc32c } from '../../workers/metrics/crc32c.ts';
import { exposition, ScrapedRun, stateSamples } from '../../backends/metrics/exposition.ts';
import { MetricsFeed } from '../../runs/metrics/metrics-feed.ts';
import type { MetricsRow, MetricsSink, NumberedRow } from '../../core/rl/metric-rows.ts';
import { appendMetrics } from '../../runs/metrics/metrics.ts';
import { readSinkStates, RunSinks } from '../../runs/metrics/run-sinks.ts';
import { describeSink } from '../../runs/metrics/sink-states.ts';
import { readRecords, TensorBoardSink } from '../../workers/metrics/tensorboard.ts';
import { openRunStore, type Store } from '../../store/index.ts';
import { startMetricsServer } from '../../workers/metrics/metrics-server.ts';

async function emptyRun(t: TestContext): Promise<{ store: Store; folder: string }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-sinks-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return { store: openRunStore(`${pathToFileURL(folder).href}/`, 'words'), folder: path.join(folder, 'words') };
}

function rowOf(step: number, lineage = 'main'): MetricsRow {
  const time = new Date(Date.UTC(2026, 10, 21, 0, 0, step)).toISOString();
  return { step, lineage, time, 'train/reward': step / 8 };
}

/** A sink that records its rows, and fails on request. */
class Kept implements MetricsSink {
  readonly name = 'kept';
  readonly rows: NumberedRow[] = [];
  failure: string | null = null;
  open(): Promise<number> {
    return Promise.resolve(this.rows.length);
  }
  send(rows: readonly NumberedRow[]): Promise<void> {
    if (this.failure !== null) return Promise.reject(new Error(this.failure));
    this.rows.push(...rows);
    return Promise.resolve();
  }
  place(): null {
    return null;
  }
  close(): Promise<void> {
    return Promise.resolve();
  }
}

const numbered = (rows: readonly NumberedRow[]) => rows.map(({ number, row }) => [number, row.lineage, row.step]);

describe('rows of metrics', () => {
  test('are handed on as they come, half a row when its rest is there', async (t) => {
    const { store, folder } = await emptyRun(t);
    const feed = new MetricsFeed(store);
    assert.deepEqual(await feed.pull(), []);
    await appendMetrics(store, rowOf(0));
    assert.deepEqual(numbered(await feed.pull()), [[0, 'main', 0]]);
    const line = `${JSON.stringify(rowOf(1))}\n`;
    await writeFile(path.join(folder, 'metrics.jsonl'), line.slice(0, 20), { flag: 'a' });
    assert.deepEqual(await feed.pull(), []);
    await writeFile(path.join(folder, 'metrics.jsonl'), line.slice(20), { flag: 'a' });
    assert.deepEqual(numbered(await feed.pull()), [[1, 'main', 1]]);
  });

  test('keep their numbers when the file is made again in another order', async (t) => {
    const { store, folder } = await emptyRun(t);
    for (const step of [0, 1, 2]) await appendMetrics(store, rowOf(step));
    await new MetricsFeed(store).pull();
    const again = [3, 2, 0, 1].map((step) => `${JSON.stringify(rowOf(step))}\n`).join('');
    await writeFile(path.join(folder, 'metrics.jsonl'), again);
    const feed = new MetricsFeed(store);
    await feed.pull();
    assert.deepEqual(
      numbered(await feed.from(0, 9)),
      [0, 1, 2, 3].map((step) => [step, 'main', step]),
    );
    feed.letGo(3);
    assert.deepEqual(numbered(await feed.from(1, 2)), [
      [1, 'main', 1],
      [2, 'main', 2],
    ]);
  });

  test('reach a sink that failed once it works, and the others meanwhile', async (t) => {
    const { store } = await emptyRun(t);
    const [kept, other] = [new Kept(), new Kept()];
    kept.failure = 'the network is away';
    const told: string[] = [];
    const sinks = new RunSinks(store, [kept, other], (line) => void told.push(line));
    for (const step of [0, 1]) await appendMetrics(store, rowOf(step));
    await sinks.advance();
    assert.deepEqual([kept.rows.length, other.rows.length], [0, 2]);
    assert.match(told.join('\n'), /the network is away; tried again later, training continues/);
    kept.failure = null;
    while (!sinks.isUpToDate) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      await sinks.advance();
    }
    assert.deepEqual(numbered(kept.rows), numbered(other.rows));
    await sinks.close(true);
    const states = await readSinkStates(store);
    assert.deepEqual(states['kept'], { next: 2, rows: 2, place: null, failing: null, isDone: true });
    assert.equal(
      describeSink('wandb', { ...states['kept'], next: 1, failing: 'no key' }),
      'wandb: 1 of 2 rows sent; failing: no key',
    );
  });
});

describe('event files of TensorBoard', () => {
  const framesIn = async (folder: string, lineage: string) => {
    const names = (await readdir(path.join(folder, 'tensorboard', lineage))).sort();
    const files = await Promise.all(names.map((name) => readFile(path.join(folder, 'tensorboard', lineage, name))));
    return files.map((file) => readRecords(file));
  };

  test('CRC-32C is that of RFC 3720', () => {
    assert.equal(crc32c(Buffer.alloc(32)), 0x8a9136aa);
    assert.equal(crc32c(Buffer.alloc(32, 0xff)), 0x62a8ab43);
    assert.equal(crc32c(Buffer.from('123456789')), 0xe3069283);
  });

  test('hold every row once, whoever writes them and whatever a crash tore', async (t) => {
    const { store, folder } = await emptyRun(t);
    for (let step = 0; step < 6; step += 1) await appendMetrics(store, rowOf(step));
    await new RunSinks(store, [new TensorBoardSink(store)], () => {}).advance();
    const [name] = await readdir(path.join(folder, 'tensorboard/main'));
    const file = path.join(folder, 'tensorboard/main', name!);
    await truncate(file, (await readFile(file)).length - 5); // the last record is torn

    await appendMetrics(store, rowOf(6));
    await appendMetrics(store, rowOf(3, 'l2'));
    const later = new RunSinks(store, [new TensorBoardSink(store)], () => {});
    await later.restore();
    await later.advance();
    await later.advance();
    const [torn, next] = await framesIn(folder, 'main');
    assert.deepEqual([torn!.records.length, torn!.isWhole], [1 + 5, false]);
    assert.deepEqual([next!.records.length, next!.isWhole], [1 + 2, true]);
    assert.deepEqual(
      (await framesIn(folder, 'l2')).map(({ records }) => records.length),
      [2],
    );
    assert.equal(await new TensorBoardSink(store).open(), 8);
  });
});

/** A Python that has TensorBoard, if there is one: `pip install tensorboard`. */
const tensorboardPython = process.env['RATCHET_TENSORBOARD_PYTHON'] ?? 'python3';
const hasTensorboard = await promisify(execFile)(tensorboardPython, ['-c', 'import tensorboard']).then(
  () => true,
  () => false,
);
const noTensorboard = hasTensorboard ? false : `${tensorboardPython} has no tensorboard`;

test("TensorBoard's own reader finds every row, also behind a torn record", { skip: noTensorboard }, async (t) => {
  const { store, folder } = await emptyRun(t);
  for (let step = 0; step < 4; step += 1) await appendMetrics(store, rowOf(step));
  await new RunSinks(store, [new TensorBoardSink(store)], () => {}).advance();
  const [name] = await readdir(path.join(folder, 'tensorboard/main'));
  const file = path.join(folder, 'tensorboard/main', name!);
  await truncate(file, (await readFile(file)).length - 5);
  await appendMetrics(store, rowOf(4));
  const later = new RunSinks(store, [new TensorBoardSink(store)], () => {});
  await later.restore();
  await later.advance();
  const script = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1]); found.Reload()
print(json.dumps([[e.step, e.value, e.wall_time] for e in found.Scalars("train/reward")]))`;
  const { stdout } = await promisify(execFile)(tensorboardPython, [
    '-c',
    script,
    path.join(folder, 'tensorboard/main'),
  ]);
  const expected = [0, 1, 2, 3, 4].map((step) => [step, step / 8, Date.parse(String(rowOf(step)['time'])) / 1000]);
  assert.deepEqual(JSON.parse(stdout), expected);
});

const own = { kind: 'secret', value: 'secret-of-this-project' } as const;
const authorization = `Bearer ${own.value}`;

describe('/metrics', () => {
  test('says the newest figures of a run', () => {
    const figures = new ScrapedRun('words "one"');
    figures.add(rowOf(0));
    figures.add({ ...rowOf(1), 'recovery/count': 2 });
    figures.add({ step: 0, lineage: 'main', 'eval/reverse-text/reward/mean': 0.5 });
    const text = exposition(figures.samples({ wandb: { next: 1, rows: 3, place: null, failing: 'x', isDone: false } }));
    const labels = 'run="words \\"one\\"",lineage="main"';
    for (const line of [
      '# TYPE ratchet_step gauge',
      `ratchet_step{${labels}} 1`,
      `ratchet_step_time_seconds{${labels}} ${Date.parse(String(rowOf(1)['time'])) / 1000}`,
      `ratchet_recoveries{${labels}} 2`,
      `ratchet_figure{${labels},name="train/reward"} 0.125`,
      `ratchet_eval{${labels},environment="reverse-text",name="reward/mean"} 0.5`,
      'ratchet_sink_behind_rows{run="words \\"one\\"",sink="wandb"} 2',
      'ratchet_sink_failing{run="words \\"one\\"",sink="wandb"} 1',
    ])
      assert(text.split('\n').includes(line), `${line}\nis not in\n${text}`);
  });

  test('says how many runs are running, paused and failed, also where there are none', () => {
    assert.match(exposition(stateSamples(new Map())), /^ratchet_runs\{state="failed"\} 0$/m);
    const text = exposition(
      stateSamples(
        new Map([
          ['a', 'paused'],
          ['b', 'failed'],
        ]),
      ),
    );
    for (const line of [
      'ratchet_runs{state="running"} 0',
      'ratchet_runs{state="paused"} 1',
      'ratchet_runs{state="failed"} 1',
      'ratchet_run_paused{run="a"} 1',
      'ratchet_run_failed{run="a"} 0',
      'ratchet_run_failed{run="b"} 1',
    ])
      assert(text.split('\n').includes(line), `${line}\nis not in\n${text}`);
  });

  test('is not served beyond loopback without a key, and asks for the one it has', async (t) => {
    const options = { host: '0.0.0.0', port: 0, key: own, text: () => 'ratchet_step{run="x"} 1\n' };
    await assert.rejects(startMetricsServer(options), /expected a key beyond loopback/);
    const server = await startMetricsServer({
      ...options,
      host: '127.0.0.1',
      key: { kind: 'chosen', value: 'open sesame', variable: 'RATCHET_METRICS_KEY' },
    });
    t.after(() => server.close());
    const { port } = server.address() as { port: number };
    const ask = (headers: Record<string, string>) => fetch(`http://127.0.0.1:${port}/metrics`, { headers });
    assert.equal((await ask({})).status, 401);
    assert.equal((await ask({ authorization: 'Bearer other' })).status, 401);
    const answer = await ask({ authorization: 'Bearer open sesame' });
    assert.equal(await answer.text(), 'ratchet_step{run="x"} 1\n');
  });

  test('answers no name that somebody else made to lead here, and no web page', async (t) => {
    const server = await startMetricsServer({ host: '127.0.0.1', port: 0, key: own, text: () => 'ratchet_step 1\n' });
    t.after(() => server.close());
    const { port } = server.address() as { port: number };
    const statusOf = (headers: Record<string, string>) =>
      new Promise<number | undefined>((resolve, reject) =>
        get({ port, path: '/metrics', headers }, (answer) => resolve(answer.resume().statusCode)).on('error', reject),
      );
    assert.equal(await statusOf({ authorization, host: `localhost:${port}` }), 200);
    assert.equal(await statusOf({ host: `localhost:${port}` }), 401);
    assert.equal(await statusOf({ authorization, host: `rebound.example:${port}` }), 403);
    assert.equal(await statusOf({ authorization, origin: 'https://rebound.example' }), 403);
  });

  test('says without a key whether its figures are those of now', async (t) => {
    let because: string | null = 'Temporal is away';
    const options = { host: '127.0.0.1', port: 0, key: own, text: () => '', whyNotReady: () => because };
    const server = await startMetricsServer(options);
    t.after(() => server.close());
    const { port } = server.address() as { port: number };
    const ask = async (): Promise<unknown[]> => {
      const answer = await fetch(`http://127.0.0.1:${port}/ready`);
      return [answer.status, await answer.text()];
    };
    assert.deepEqual(await ask(), [503, 'Temporal is away\n']);
    because = null;
    assert.deepEqual(await ask(), [200, 'ready\n']);
  });

  test('continues when it is asked for what is no address', async (t) => {
    const server = await startMetricsServer({ host: '127.0.0.1', port: 0, key: own, text: () => 'ratchet_step 1\n' });
    t.after(() => server.close());
    const { port } = server.address() as { port: number };
    const statusOf = (target: string) =>
      new Promise<number | undefined>((resolve, reject) =>
        get({ port, path: target, headers: { authorization } }, (answer) => resolve(answer.resume().statusCode)).on(
          'error',
          reject,
        ),
      );
    assert.deepEqual([await statusOf('//'), await statusOf('/metrics?a=//')], [404, 200]);
  });
});
