import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { readMetrics } from '../../runs/metrics/metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { layout } from '../../runs/layout.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';
import { episodesOf, otlpSink } from '../../workers/metrics/sink-settings.ts';

interface Value {
  readonly stringValue?: string;
  readonly intValue?: string;
  readonly doubleValue?: number;
}
interface Span {
  readonly name: string;
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly { readonly key: string; readonly value: Value }[];
}
interface Metric {
  readonly name: string;
  readonly gauge?: { readonly dataPoints: readonly { readonly asDouble: number; readonly timeUnixNano: string }[] };
  readonly sum?: { readonly dataPoints: readonly { readonly asInt: string }[] };
  readonly histogram?: { readonly dataPoints: readonly { readonly sum: number; readonly bucketCounts: string[] }[] };
}
interface Received {
  readonly path: string;
  readonly key: string | undefined;
  readonly resource: readonly { readonly key: string; readonly value: Value }[];
  readonly spans: readonly Span[];
  readonly metrics: readonly Metric[];
}

async function collector(t: TestContext): Promise<{ address: string; received: Received[] }> {
  const received: Received[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const body = JSON.parse(Buffer.concat(chunks).toString('utf8')) as {
        resourceSpans?: { resource: { attributes: Received['resource'] }; scopeSpans: { spans: Span[] }[] }[];
        resourceMetrics?: { resource: { attributes: Received['resource'] }; scopeMetrics: { metrics: Metric[] }[] }[];
      };
      const { resource } = (body.resourceSpans ?? body.resourceMetrics)![0]!;
      received.push({
        path: request.url!,
        key: request.headers['x-api-key'] as string | undefined,
        resource: resource.attributes,
        spans: body.resourceSpans?.flatMap(({ scopeSpans }) => scopeSpans.flatMap(({ spans }) => spans)) ?? [],
        metrics:
          body.resourceMetrics?.flatMap(({ scopeMetrics }) => scopeMetrics.flatMap(({ metrics }) => metrics)) ?? [],
      });
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { address: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, received };
}

function specOf(): RunSpec {
  const parsed = parseRunConfig('model = "preset:reverse-text-0.2m"\nname = "words"\n[[env]]\nid = "reverse-text"\n', {
    file: 'words.toml',
  });
  assert(parsed.ok);
  return parsed.spec;
}

/** A run without episodes. */
const ofRun = { id: 'f00d', episodesOf: () => Promise.resolve([]) };

const committed = '2026-11-21T00:00:10.000Z';
const step: MetricsRow = {
  step: 3,
  lineage: 'main',
  time: committed,
  'time/step': 5,
  'time/wait_for_batch': 3,
  'rollout/generation_time': 2.5,
  'rollout/scoring_time': 0.25,
  'time/train': 1.5,
  'train/reward': 0.5,
  'train/loss': 0.125,
  'batch/rollouts': 64,
  'batch/trained_tokens': 1_000,
};
const evaluation: MetricsRow = { step: 3, lineage: 'main', 'eval/words/reward/mean': 0.75 };

/** Seconds before the commit. */
const before = (nanoseconds: string): number =>
  Date.parse(committed) / 1000 - Number(BigInt(nanoseconds) / 1_000n) / 1e6;

describe('OpenTelemetry', () => {
  test('gets a step as a trace, and every metric, at the time of its commit', async (t) => {
    const { address, received } = await collector(t);
    const environment = {
      OTEL_EXPORTER_OTLP_ENDPOINT: `${address}/`,
      OTEL_EXPORTER_OTLP_HEADERS: 'x-api-key=c4na7y%3D',
      OTEL_EXPORTER_OTLP_TRACES_HEADERS: 'x-api-key=trac3s',
      OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=lab',
    };
    const sink = otlpSink(specOf(), ofRun, environment)!;
    assert.equal(await sink.open(7), 7);
    const rows = [
      { number: 7, row: step },
      { number: 8, row: evaluation },
    ];
    await sink.send(rows);
    assert.deepEqual(
      received.map(({ path, key }) => [path, key]),
      [
        ['/v1/traces', 'trac3s'],
        ['/v1/metrics', 'c4na7y='],
      ],
    );
    const resource = Object.fromEntries(received[0]!.resource.map(({ key, value }) => [key, value.stringValue]));
    assert.deepEqual(resource, {
      'service.name': 'ratchet',
      'deployment.environment': 'lab',
      'rl.system': 'ratchet',
      'rl.run.id': 'words',
      'rl.algorithm': specOf().loss.type,
      'rl.model.name': 'preset:reverse-text-0.2m',
      'rl.environment.name': 'reverse-text',
    });

    const [loop, ...parts] = received[0]!.spans;
    assert.deepEqual(
      [loop!, ...parts].map(({ name, startTimeUnixNano: from, endTimeUnixNano: to }) => [
        name,
        before(from),
        before(to),
      ]),
      [
        ['rl.loop', 5, 0],
        ['rl.sample', 4.75, 2.25],
        ['rl.reward', 2.25, 2],
        ['rl.train', 2, 0.5],
      ],
    );
    for (const part of parts) assert.deepEqual([part.traceId, part.parentSpanId], [loop!.traceId, loop!.spanId]);
    assert.match(loop!.traceId, /^[0-9a-f]{32}$/);
    assert.match(loop!.spanId, /^[0-9a-f]{16}$/);
    assert.deepEqual(loop!.attributes[0], { key: 'rl.loop.iteration', value: { intValue: '3' } });

    const metrics = new Map(received[1]!.metrics.map((metric) => [metric.name, metric]));
    assert.equal(metrics.get('rl.train.duration')!.histogram!.dataPoints[0]!.sum, 1.5);
    assert.equal(metrics.get('rl.train.duration')!.histogram!.dataPoints[0]!.bucketCounts.indexOf('1'), 3);
    assert.equal(metrics.get('rl.train.tokens')!.sum!.dataPoints[0]!.asInt, '1000');
    assert.equal(metrics.get('rl.train.loss')!.gauge!.dataPoints[0]!.asDouble, 0.125);
    assert.equal(before(metrics.get('rl.train.loss')!.gauge!.dataPoints[0]!.timeUnixNano), 0);
    assert.equal(metrics.get('ratchet.eval.words.reward.mean')!.gauge!.dataPoints[0]!.asDouble, 0.75);

    await sink.send(rows);
    assert.deepEqual(received[2]!.spans, received[0]!.spans, 'a step that is sent again is the same spans');
  });

  test('is fed where its variables say so, and says what is wrong with them', async (t) => {
    const { address, received } = await collector(t);
    const spec = specOf();
    assert.equal(otlpSink(spec, ofRun, {}), null);
    assert.equal(otlpSink(spec, ofRun, { OTEL_EXPORTER_OTLP_ENDPOINT: address, OTEL_SDK_DISABLED: 'true' }), null);
    const own = otlpSink(spec, ofRun, { OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: `${address}/own` })!;
    await own.open(0);
    await own.send([{ number: 0, row: step }]);
    assert.deepEqual(
      received.map(({ path }) => path),
      ['/own'],
    );
    for (const url of ['localhost:4317', address.replace('//', '//user:c4na7y@')]) {
      const told = { name: 'ConfigInvalid', message: /^OTEL_EXPORTER_OTLP_ENDPOINT: expected the URL of a collector/ };
      const sink = otlpSink(spec, ofRun, { OTEL_EXPORTER_OTLP_ENDPOINT: url })!;
      await assert.rejects(sink.open(0), told); // which keeps no other sink from being fed
    }
    const grpc = { OTEL_EXPORTER_OTLP_ENDPOINT: address, OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' };
    await assert.rejects(otlpSink(spec, ofRun, grpc)!.open(0), /expected "http\/json" or .*, got "grpc"/);
    const queried = { OTEL_EXPORTER_OTLP_ENDPOINT: `${address}/base/?tenant=a`, OTEL_METRICS_EXPORTER: 'none' };
    const one = otlpSink(spec, ofRun, queried)!;
    await one.open(0);
    await one.send([{ number: 0, row: step }]);
    assert.equal(received.at(-1)!.path, '/base/v1/traces?tenant=a');
    const away = otlpSink(spec, ofRun, { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9' })!;
    await away.open(0);
    await assert.rejects(away.send([{ number: 0, row: step }]), /127\.0\.0\.1:9\/v1\/traces cannot be reached/);
  });

  test('gets each rollout below its step, the same ones when it is sent again, as many as the run file says', async (t) => {
    const { address, received } = await collector(t);
    const run = await makeRun(t);
    const roles = openRoles();
    await advance(run, roles, await advance(run, roles, await commitFirst(run, roles)));
    const [, second] = (await readMetrics(run.store)).map((row) => ({
      ...row,
      'time/step': 4,
      'time/wait_for_batch': 3,
    }));
    const complaints: string[] = [];
    const told = episodesOf(run.run, (line) => complaints.push(line));
    const spansSent = async (share: number | null): Promise<readonly Span[]> => {
      const spec = { ...specOf(), ...(share === null ? {} : { opentelemetry: { rollouts: share } }) };
      const sink = otlpSink(spec, { id: 'f00d', episodesOf: told }, { OTEL_EXPORTER_OTLP_ENDPOINT: address })!;
      await sink.open(0);
      const before = received.length;
      await sink.send([{ number: 1, row: second! }]);
      return received.slice(before).flatMap(({ spans }) => spans);
    };
    const all = await spansSent(null);
    const episodes = all.filter(({ name }) => name === 'rl.sample.episode');
    assert.equal(episodes.length, 8);
    assert.equal(new Set(episodes.map(({ spanId }) => spanId)).size, 8);
    const sample = all.find(({ name }) => name === 'rl.sample')!;
    for (const one of episodes) {
      assert.deepEqual([one.traceId, one.parentSpanId], [sample.traceId, sample.spanId]);
      assert.deepEqual(
        [one.startTimeUnixNano, one.endTimeUnixNano],
        [sample.startTimeUnixNano, sample.endTimeUnixNano],
      );
    }
    const facts = Object.fromEntries(
      episodes[0]!.attributes.map(({ key, value }) => [key, Object.values(value)[0] as string | number]),
    );
    const [first] = await told('main', 2);
    assert.deepEqual(
      [
        facts['rl.reward.score'],
        facts['rl.sample.output_tokens'],
        facts['ratchet.group'],
        facts['ratchet.policy_version'],
      ].map(Number),
      [first!.reward, first!.tokens, first!.group, 1],
    );
    assert.deepEqual(
      [facts['rl.environment.name'], facts['ratchet.outcome'], facts['ratchet.group.end']],
      ['reverse-text', 'ok', 'trained'],
    );
    assert.deepEqual(await spansSent(1), all, 'after a kill');
    const idsOf = (spans: readonly Span[]) => spans.slice(4).map(({ spanId }) => spanId);
    const half = idsOf(await spansSent(0.5));
    assert(half.length > 0 && half.length < 8);
    assert(half.every((spanId) => idsOf(all).includes(spanId)));
    assert.deepEqual(idsOf(await spansSent(0.5)), half);
    assert.deepEqual(idsOf(await spansSent(0)), []);
    assert.deepEqual(complaints, []);
    await run.store.put(layout.commit('main', 2), Buffer.from('{'));
    assert.deepEqual(idsOf(await spansSent(1)), [], 'the step itself is sent');
    assert.match(complaints.join(), /rollouts of step 2 are left out: .*step_2\.json/);
  });
});
