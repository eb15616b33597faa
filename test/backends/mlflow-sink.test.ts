import assert from 'node:assert/strict';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { mkdtemp, rm } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, test, type TestContext } from 'node:test';
import { mlflowName, MlflowSink } from '../../backends/metrics/mlflow.ts';
import { openRunStore } from '../../store/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { appendMetrics, readMetrics } from '../../runs/metrics/metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { readSinkStates, RunSinks } from '../../runs/metrics/run-sinks.ts';
import { mlflowSink } from '../../workers/metrics/sink-settings.ts';

interface Metric {
  readonly key: string;
  readonly value: number;
  readonly step: number;
}
interface Kept {
  readonly run_id: string;
  readonly name: string;
  status: string;
  readonly tags: Map<string, string>;
  readonly params: Map<string, string>;
  /** Kept as in MLflow's file store: a metric sent twice is there twice. */
  readonly metrics: Metric[];
}

interface Pair {
  readonly key: string;
  readonly value: string;
}
type Asked = {
  readonly [
    name in 'experiment_name' | 'name' | 'filter' | 'run_name' | 'run_id' | 'key' | 'value' | 'status' | 'metric_key'
  ]?: string;
} & { readonly metrics?: readonly Metric[]; readonly params?: readonly Pair[]; readonly tags?: readonly Pair[] };

/** The routes of a tracking server that are asked, with the limits and refusals of mlflow/utils/validation.py. */
class TrackingServer {
  readonly experiments = new Map<string, string>();
  readonly runs: Kept[] = [];
  /** Ends the connection after a batch's metrics were kept and before its tags are. */
  tearsBatches = 0;
  token: string | null = null;
  requests = 0;

  async listen(t: TestContext): Promise<string> {
    const server = createServer((request, response) => void this.#answer(request, response));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.requests += 1;
    const url = new URL(request.url!, 'http://server');
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = chunks.length === 0 ? {} : (JSON.parse(Buffer.concat(chunks).toString('utf8')) as Asked);
    const say = (status: number, answer: object): void => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer));
    };
    if (this.token !== null && request.headers.authorization !== `Bearer ${this.token}`) return say(401, {});
    const answer = this.#do(url.pathname.replace('/api/2.0/mlflow/', ''), {
      ...Object.fromEntries(url.searchParams),
      ...body,
    });
    if (answer === 'torn') return void response.destroy();
    if (typeof answer === 'string')
      return say(answer.startsWith('RESOURCE') ? 404 : 400, { error_code: answer, message: 'm' });
    say(200, answer);
  }

  #do(route: string, asked: Asked): object | string {
    const run = this.runs.find(({ run_id }) => run_id === asked.run_id);
    const told = (one: Kept): object => ({
      info: { run_id: one.run_id, status: one.status },
      data: { tags: [...one.tags].map(([key, value]) => ({ key, value })) },
    });
    const pairs = (list: readonly Pair[] = []) => list.map(({ key, value }) => [key, value] as const);
    switch (route) {
      case 'experiments/get-by-name': {
        const id = this.experiments.get(asked.experiment_name!);
        return id === undefined
          ? 'RESOURCE_DOES_NOT_EXIST'
          : { experiment: { experiment_id: id, lifecycle_stage: 'active' } };
      }
      case 'experiments/create': {
        this.experiments.set(asked.name!, String(this.experiments.size + 1));
        return { experiment_id: String(this.experiments.size) };
      }
      case 'runs/search': {
        const id = /^tags\.`ratchet\.id` = '(\w+)'$/.exec(asked.filter!)![1]!;
        return { runs: this.runs.filter(({ tags }) => tags.get('ratchet.id') === id).map(told) };
      }
      case 'runs/create': {
        const made: Kept = {
          run_id: `r${this.runs.length}`,
          name: asked.run_name!,
          status: 'RUNNING',
          tags: new Map(pairs(asked.tags)),
          params: new Map(),
          metrics: [],
        };
        this.runs.push(made);
        return { run: told(made) };
      }
      case 'runs/log-batch': {
        const { metrics = [], params = [], tags = [] } = asked;
        if (metrics.length > 1000 || params.length > 100 || metrics.length + params.length + tags.length > 1000)
          return 'INVALID_PARAMETER_VALUE';
        if (![...metrics, ...params].every(({ key }) => /^[\w\-./: ]{1,250}$/.test(key)))
          return 'INVALID_PARAMETER_VALUE';
        if (!params.every(({ value }) => value.length <= 500)) return 'INVALID_PARAMETER_VALUE';
        run!.metrics.push(...metrics);
        if (metrics.length > 0 && this.tearsBatches > 0) {
          this.tearsBatches -= 1;
          return 'torn';
        }
        for (const [key, value] of pairs(params)) run!.params.set(key, value);
        for (const [key, value] of pairs(tags)) run!.tags.set(key, value);
        return {};
      }
      case 'runs/set-tag':
        run!.tags.set(asked.key!, asked.value!);
        return {};
      case 'runs/update':
        run!.status = asked.status!;
        return {};
      case 'metrics/get-history':
        return { metrics: run!.metrics.filter(({ key }) => key === asked.metric_key) };
      default:
        return 'ENDPOINT_NOT_FOUND';
    }
  }
}

const config = 'model = "preset:reverse-text-0.2m"\nname = "words"\n[[env]]\nid = "reverse-text"\n[mlflow]\n';

async function openRun(t: TestContext, server: TrackingServer) {
  const outputs = await mkdtemp(path.join(tmpdir(), 'ratchet-mlflow-'));
  t.after(() => rm(outputs, { recursive: true, force: true }));
  const store = openRunStore(`${pathToFileURL(outputs).href}/`, 'words');
  const address = await server.listen(t);
  const parsed = parseRunConfig(config, { file: 'words.toml' });
  assert(parsed.ok);
  const { spec } = parsed;
  const told: string[] = [];
  const open = (environment: NodeJS.ProcessEnv = { MLFLOW_TRACKING_URI: address }): RunSinks =>
    new RunSinks(store, [mlflowSink(spec, spec.mlflow!, 'f00d', environment)], (line) => void told.push(line));
  return { store, address, told, open };
}

/** Rows of a lineage at the server, in the form of `metrics.jsonl` and without times. */
function rowsIn({ metrics, tags }: Kept): MetricsRow[] {
  const steps = [...new Set(metrics.map(({ step }) => step))].sort((a, b) => a - b);
  return steps.map((step) => {
    const points = metrics.filter((metric) => metric.step === step);
    assert.equal(new Set(points.map(({ key }) => key)).size, points.length, `step ${step} has a point twice`);
    return {
      step,
      lineage: tags.get('ratchet.lineage')!,
      ...Object.fromEntries(points.map(({ key, value }) => [key, value])),
    };
  });
}

const rowOf = (step: number, lineage = 'main'): MetricsRow => ({
  step,
  lineage,
  time: new Date(Date.UTC(2026, 10, 21, 0, 0, step)).toISOString(),
  'train/reward': step / 8,
  'eval/words/pass@4': 0.5,
});

/** Advances like the follower, until everything was sent. */
async function untilSent(sinks: RunSinks): Promise<void> {
  for (;;) {
    await sinks.advance();
    if (sinks.isUpToDate) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

describe('MLflow', () => {
  test('has each row of each lineage once, whoever was killed between the numbers and their tag', async (t) => {
    const server = new TrackingServer();
    const { store, open } = await openRun(t, server);
    for (const step of [1, 2, 3]) await appendMetrics(store, rowOf(step));
    server.tearsBatches = 1;
    const first = open();
    await first.advance(); // the answer never came
    await first.close(false);
    assert.equal(server.runs[0]!.metrics.length, 6);
    assert.equal(server.runs[0]!.tags.get('ratchet.next'), undefined);

    for (const step of [4, 5]) await appendMetrics(store, rowOf(step));
    await appendMetrics(store, rowOf(4, 'l2'));
    const second = open();
    await untilSent(second);
    await second.close(true);

    const expected = (await readMetrics(store)).map(({ time: _time, 'eval/words/pass@4': pass, ...row }) => ({
      ...row,
      'eval/words/pass_at_4': pass,
    }));
    assert.deepEqual(server.runs.flatMap(rowsIn), expected);
    assert.deepEqual(
      server.runs.map(({ name, status }) => [name, status]),
      [
        ['words', 'FINISHED'],
        ['words (lineage 2)', 'FINISHED'],
      ],
    );
    assert.equal(server.runs[1]!.tags.get('mlflow.parentRunId'), 'r0');
    assert.equal(server.runs[0]!.params.get('model'), 'preset:reverse-text-0.2m');
    const { mlflow } = await readSinkStates(store);
    assert.deepEqual([mlflow!.next, mlflow!.isDone], [6, true]);
    assert.match(mlflow!.place!, /^http:\/\/127\.0\.0\.1:\d+\/#\/experiments\/1\/runs\/r0$/);
  });

  test('goes on in the same MLflow run when a run that had ended is extended', async (t) => {
    const server = new TrackingServer();
    const { store, open } = await openRun(t, server);
    await appendMetrics(store, rowOf(1));
    const first = open();
    await untilSent(first);
    await first.close(true);
    await appendMetrics(store, rowOf(2));
    const second = open();
    await untilSent(second);
    assert.deepEqual(
      server.runs.map(({ status, metrics }) => [status, metrics.length]),
      [['RUNNING', 4]],
    );
  });

  test('that refuses, is away or was not named says what to do, and never the token', async (t) => {
    const server = new TrackingServer();
    const { store, address, told, open } = await openRun(t, server);
    await appendMetrics(store, rowOf(1));
    server.token = 'the right one';
    for (const environment of [
      { MLFLOW_TRACKING_URI: address, MLFLOW_TRACKING_TOKEN: 'c4na7y' },
      { MLFLOW_TRACKING_URI: 'http://127.0.0.1:9' },
      { MLFLOW_TRACKING_URI: 'sqlite:///mlflow.db' },
      { MLFLOW_TRACKING_URI: address.replace('//', '//user:c4na7y@') },
      {},
    ]) {
      await open(environment).advance();
    }
    assert.match(told[0]!, /answers 401: set MLFLOW_TRACKING_TOKEN/);
    assert.match(told[1]!, /127\.0\.0\.1:9 cannot be reached \(.*\)\. Is it running/);
    assert.match(told[2]!, /needs the URL of a tracking server.*got one that begins sqlite:/);
    assert.match(told[3]!, /without a password in it/);
    assert.match(told[4]!, /got nothing\. Start one: mlflow server/);
    assert.doesNotMatch(told.join('\n'), /c4na7y/);
    const right = open({ MLFLOW_TRACKING_URI: address, MLFLOW_TRACKING_TOKEN: server.token });
    await untilSent(right);
    assert.equal(server.runs[0]!.metrics.length, 2);
  });

  test('gets 1,000 rows of 100 metrics in batches that it takes', async (t) => {
    const server = new TrackingServer();
    const address = await server.listen(t);
    const sink = new MlflowSink({
      trackingUri: () => address,
      experiment: 'e',
      runName: 'n',
      id: 'f00d',
      params: Object.fromEntries(Array.from({ length: 250 }, (_, i) => [`key ${i}`, 'x'.repeat(i * 4)])),
      environment: {},
    });
    const names = Array.from({ length: 100 }, (_, i) => `metric/${i}`);
    const rows = Array.from({ length: 1_000 }, (_, step) => ({
      number: step,
      row: { step, lineage: 'main', ...Object.fromEntries(names.map((name, i) => [name, step + i])) } as MetricsRow,
    }));
    assert.equal(await sink.open(), 0);
    await sink.send(rows);
    assert.equal(server.runs[0]!.metrics.length, 100_000);
    assert.equal(await sink.open(), 1_000);
    assert.equal(mlflowName('eval/a:b/avg@4 é'), 'eval/a:b/avg_at_4 _');
  });
});
