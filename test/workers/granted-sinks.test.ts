/** Metrics and notices of a run go to servers that this user named, signed and with keys that were named with them. */
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createOpenRun, type OpenedRun, type TrainRunInput } from '../../activities/open-run.ts';
import { grantNamed, namedIn, serversIn } from '../../load/grants/grant.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openRunStore } from '../../store/index.ts';
import { trustedRootsVariable } from '../../core/child-environment.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { grantedLines } from '../../host/grants.ts';
import { appendMetrics } from '../../runs/metrics/metrics.ts';
import { webhookFailure, writeNotice } from '../../runs/metrics/notices.ts';
import type { StoredNotice } from '../../core/rl/notices.ts';
import { readSinkStates, RunSinks } from '../../runs/metrics/run-sinks.ts';
import { describeSink } from '../../runs/metrics/sink-states.ts';
import { NoticePost } from '../../workers/metrics/post-notices.ts';
import { mlflowSink, otlpSink } from '../../workers/metrics/sink-settings.ts';
import { WandbSink } from '../../workers/metrics/wandb-sink.ts';
import { listener, notAsked, stage } from '../engine/grant-stage.ts';

const notice: StoredNotice = {
  id: 'main.step_1.note',
  kind: 'note',
  lineage: 'main',
  step: 1,
  time: new Date().toISOString(),
  text: 'a note',
};
const base = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';

/** A project with a run file, and the environment of the process that hands on metrics there. */
function sinkStage(t: TestContext, file = base) {
  const { project, write } = stage(t);
  const run = write('run.toml', file);
  const environment: NodeJS.ProcessEnv = {
    [trustedRootsVariable]: project,
    MLFLOW_TRACKING_TOKEN: 'canary-mlflow',
    NOTIFY_SECRET: 'canary-notify',
    NOTIFY_OTHER: 'canary-other',
    WANDB_API_KEY: 'canary-wandb',
    PATH: '',
  };
  const open = createOpenRun({
    projectFolder: project,
    whatSearchAttributesLack: async () => null,
    isWorkflowRunning: async () => false,
  });
  /** Starts a run with nothing but a client of Temporal. */
  const start = async (name: string, input: Partial<Exclude<TrainRunInput, string>> = {}): Promise<RunSpec> => {
    const asked = { config: run, run: name, ...input };
    const opened = await new MockActivityEnvironment().run(open, asked, name, 'execution');
    return (opened as OpenedRun).spec;
  };
  const typed = async (overrides: Record<string, string> = {}): Promise<RunSpec> => {
    const { spec } = await loadRunConfig(run, { projectFolder: project, overrides });
    grantNamed(project, [run, ...namedIn(spec)]);
    return spec;
  };
  const stores = path.join(project, 'outputs');
  mkdirSync(stores);
  const storeFor = (name: string) => openRunStore(`${pathToFileURL(stores).href}/`, name);
  /** Posts one notice, and says why it was not taken; null where it was. */
  const post = async (spec: RunSpec, name: string, more: NodeJS.ProcessEnv = {}): Promise<string | null> => {
    const store = storeFor(name);
    await writeNotice(store, notice);
    await NoticePost.of(spec, store, { log: () => {}, environment: { ...environment, ...more } }).advance();
    return webhookFailure(store);
  };
  const track = (spec: RunSpec, more: NodeJS.ProcessEnv = {}) =>
    mlflowSink(spec, spec.mlflow!, 'f00d', { ...environment, ...more }).open();
  return { project, environment, start, typed, post, track, storeFor };
}

/** A tracking server and receiver of webhooks: takes what comes. */
const taker = (t: TestContext) =>
  listener(t, (_, reply) => void reply.end('{"experiment":{"experiment_id":"1"},"experiment_id":"1","runs":[]}'));

describe('a run that was started over Temporal with servers laid over a file of this user', () => {
  test('tells them no key, no setting and no notice, and its status says why', async (t) => {
    const { start, post, track, storeFor, environment } = sinkStage(t);
    const { url, heard } = await taker(t);
    const hook = `${url}/hook`;
    const spec = await start('a', {
      overrides: { 'mlflow.tracking_uri': url, 'notify.webhook': hook, 'notify.secret_var': 'NOTIFY_SECRET' },
    });
    assert.deepEqual([spec.mlflow?.trackingUri, spec.notify?.webhook], [url, hook]);
    await assert.rejects(track(spec), notAsked);
    await assert.rejects(track(spec, { MLFLOW_TRACKING_TOKEN: '' }), notAsked);
    assert.match((await post(spec, 'a')) ?? '', /^The webhook \(\[notify\] webhook\) at http:\S+ is not asked/);
    const unsigned = await start('b', { overrides: { 'notify.webhook': hook } });
    assert.match((await post(unsigned, 'b')) ?? '', notAsked);

    const store = storeFor('a');
    await appendMetrics(store, { step: 1, lineage: 'main', time: new Date().toISOString(), 'train/reward': 1 });
    const sinks = new RunSinks(store, [mlflowSink(spec, spec.mlflow!, 'f00d', environment)], () => {});
    await sinks.advance();
    const { mlflow } = await readSinkStates(store);
    assert.match(describeSink('mlflow', mlflow!) ?? '', /0 of 1 rows sent; failing: MLflow .* is not asked/);
    assert.deepEqual(heard, []);
  });

  test('does not reach W&B where the file does not; offline it needs nobody', async (t) => {
    const { start, environment } = sinkStage(t);
    const sink = (spec: RunSpec, more: NodeJS.ProcessEnv = {}) => {
      const options = { spec, wandb: spec.wandb!, id: 'f00d', folder: '/nowhere', log: () => {} };
      return new WandbSink({ ...options, environment: { ...environment, RATCHET_PYTHON: '/no/python', ...more } });
    };
    const spec = await start('a', { overrides: { 'wandb.project': 'p' } });
    await assert.rejects(
      sink(spec).open(0),
      /^ConfigInvalid: W&B \(\[wandb\]\) at https:\/\/api\.wandb\.ai is not asked/,
    );
    await assert.rejects(sink(spec, { WANDB_BASE_URL: 'https://wandb.example' }).open(0), /Python .* needed/);
    const offline = await start('b', { overrides: { 'wandb.mode': 'offline' } });
    await assert.rejects(sink(offline).open(0), /Python .* needed/);
  });

  test('does not sign with a key, nor post to a variable or a path, that was not named with it', async (t) => {
    const { url, heard } = await taker(t);
    const hook = `${url}/hook`;
    const { start, post } = sinkStage(t, `${base}[notify]\nwebhook = "${hook}"\nsecret_var = "NOTIFY_SECRET"\n`);
    assert.equal(await post(await start('granted'), 'granted'), null);
    assert.equal(heard.length, 1);
    assert.match(String(heard[0]!['webhook-signature']), /^v1,/);
    const laid: Record<string, string>[] = [
      { 'notify.secret_var': 'NOTIFY_OTHER' },
      { 'notify.webhook': `${url}/other` },
      { 'notify.webhook': `${url}/hook?x=1` },
      { 'notify.webhook': hook.replace('127.0.0.1', 'localhost') },
    ];
    for (const [i, overrides] of laid.entries())
      assert.match((await post(await start(`laid-${i}`, { overrides }), `laid-${i}`)) ?? '', notAsked);
    assert.equal(heard.length, 1);
  });

  test('posts to no variable that was not named', async (t) => {
    const { url, heard } = await taker(t);
    const { start, post } = sinkStage(t, `${base}[notify]\nwebhook_var = "NOTIFY_URL"\nsecret_var = "NOTIFY_SECRET"\n`);
    const variables = { NOTIFY_URL: `${url}/secret-path`, NOTIFY_ELSE: `${url}/else` };
    const granted = await start('granted');
    assert.equal(await post(granted, 'granted', variables), null);
    // The variable names the address, so that a new address needs no new grant.
    assert.equal(await post(granted, 'moved', { ...variables, NOTIFY_URL: `${url}/new-path` }), null);
    assert.equal(heard.length, 2);
    for (const [i, overrides] of [
      { 'notify.webhook_var': 'NOTIFY_ELSE' },
      { 'notify.secret_var': 'NOTIFY_OTHER' },
    ].entries()) {
      const why = await post(await start(`laid-${i}`, { overrides }), `laid-${i}`, variables);
      assert.match(why ?? '', notAsked);
      assert.ok(!why!.includes('secret-path') && !why!.includes('canary'));
    }
    assert.equal(heard.length, 2);
  });

  test('has the servers of a file as it stands, and of several files no key', async (t) => {
    const { url, heard } = await taker(t);
    const { start, track, project } = sinkStage(t, `${base}[mlflow]\ntracking_uri = "${url}"\n`);
    const changed = await start('a', { overrides: { max_steps: '3' } });
    await assert.rejects(track(changed), notAsked);
    const layered = await start('b', { over: [{ file: path.join(project, 'run.toml') }] });
    await assert.rejects(track(layered), /is not asked with the key in MLFLOW_TRACKING_TOKEN/);
    assert.deepEqual(heard, []);
    await track(await start('c'));
    assert.ok(heard.length > 0 && heard.every(({ authorization }) => authorization === 'Bearer canary-mlflow'));
    // Another key of MLflow's is meant for the same server; one of another service is not.
    await track(changed, { MLFLOW_TRACKING_TOKEN: '', MLFLOW_TRACKING_USERNAME: 'u', MLFLOW_TRACKING_PASSWORD: 'p' });
  });
});

test('what is typed at a command line is granted', async (t) => {
  const { url, heard } = await taker(t);
  const { typed, post, track, project } = sinkStage(t);
  const spec = await typed({
    'mlflow.tracking_uri': url,
    'notify.webhook': `${url}/hook`,
    'notify.secret_var': 'NOTIFY_SECRET',
    'wandb.project': 'p',
  });
  await track(spec);
  assert.equal(await post(spec, 'typed'), null);
  const lines = grantedLines(project);
  for (const line of [
    `key MLFLOW_TRACKING_TOKEN ${url}`,
    `key NOTIFY_SECRET ${url}/hook`,
    'key WANDB_API_KEY https://api.wandb.ai',
  ])
    assert.ok(lines.includes(line), line);
  // Evaluating the run sends these servers nothing.
  assert.deepEqual(
    serversIn(spec).filter((line) => line.includes(url)),
    [],
  );
  assert.ok(heard.every(({ authorization }) => [undefined, 'Bearer canary-mlflow'].includes(authorization as string)));
});

test('what the environment of the workers names is granted with its keys', async (t) => {
  const { url, heard } = await taker(t);
  const { start, track, environment } = sinkStage(t);
  const open = await start('open', { overrides: { 'mlflow.experiment': 'e' } });
  await track(open, { MLFLOW_TRACKING_URI: url });
  assert.equal(heard[0]!['authorization'], 'Bearer canary-mlflow');
  const told = { id: 'f00d', episodesOf: async () => [] };
  const collector = { OTEL_EXPORTER_OTLP_ENDPOINT: url, OTEL_EXPORTER_OTLP_HEADERS: 'x-key=canary-otel' };
  const otlp = otlpSink(open, told, { ...environment, ...collector })!;
  await otlp.open(0);
  await otlp.send([{ number: 0, row: { step: 1, lineage: 'main', 'train/reward': 1 } }]);
  assert.equal(heard.at(-1)!['x-key'], 'canary-otel');
  assert.ok(!heard.some((headers) => headers['x-key'] !== undefined && headers['authorization'] !== undefined));
});
