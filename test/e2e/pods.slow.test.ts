/** The containers of deploy/kubernetes, started here with their commands and environments. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { TrainerNodes } from '../../backends/nodes/nodes.ts';
import { saveModelFolder } from '../../engine/index.ts';
import { bearer } from '../../engine/server/gate.ts';
import { closeProcesses } from '../../host/processes-open.ts';
import { holdSecret } from '../../host/project-secret.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { pods } from '../docs/manifests.ts';
import { preset } from '../engine/models.ts';
import { eventually, temporaryFolder } from '../workers/fixtures/processes.ts';
import { startStoppableServer } from '../workers/fixtures/temporal-server.ts';
import { RunningPod } from './pods.ts';
import { smallRun } from './small-run.ts';

const secrets = {
  keys: { OPENAI_API_KEY: 'sk-of-a-judge\n' },
  'metrics-key': { RATCHET_METRICS_KEY: 'key-of-prometheus\n' },
  'policy-key': { POLICY_KEY: 'key-of-policy-servers' },
  'vllm-keys': { RATCHET_WEIGHTS_AGENT_KEY: 'key-of-agents', VLLM_KEY: 'key-of-vllm' },
};

async function cluster(t: TestContext) {
  const folder = temporaryFolder(t);
  mkdirSync(path.join(folder, 'outputs'));
  const { address, stop } = await startStoppableServer(t);
  return { folder, temporal: address, stop, secrets };
}

const podOf = (name: string) => pods().find((one) => one.name === `ratchet-${name}`)!;

test('a run trains on the pods of the base; a file and SIGTERM end them, and nothing of a secret is told', async (t) => {
  const here = await cluster(t);
  const roles = ['orchestrator', 'rollout', 'train', 'metrics', 'page'];
  const running = Object.fromEntries(
    await Promise.all(roles.map(async (role) => [role, await RunningPod.start(t, podOf(role), here)] as const)),
  );
  const { orchestrator, rollout, train, metrics, page } = running as Record<string, RunningPod>;
  for (const pod of Object.values(running)) await pod.ready();
  assert.match(page!.said('page'), /^runs: http:\/\/127\.0\.0\.1:\d+\/#token=/m);

  const file = path.join(here.folder, 'small.toml');
  const stored = `[store]\nuri = "file:${path.join(here.folder, 'outputs')}"\n`;
  writeFileSync(file, smallRun.replace('max_steps = 12', 'max_steps = 2').replace('steps = 60', 'steps = 5') + stored);
  await orchestrator!.exec('worker', ['node', 'cli/ratchet.mjs', 'train', file]);
  assert.ok(existsSync(path.join(here.folder, 'outputs/small/lineages/main/steps/step_2.json')));

  const scrape = async (key: string): Promise<string> => {
    const headers = { authorization: bearer(key) };
    return (await fetch(`http://127.0.0.1:${metrics!.port(9464)}/metrics`, { headers })).text();
  };
  assert.match(await scrape('another'), /RATCHET_METRICS_KEY/);
  for (const line of [
    'ratchet_workers{role="orchestrator"} 1',
    'ratchet_workers{role="rollout"} 1',
    'ratchet_workers{role="train"} 1',
    'ratchet_tasks{role="rollout",state="waiting"} 0',
    'ratchet_tasks{role="train",state="running"} 0',
    'ratchet_runs{state="running"} 0',
  ])
    await eventually(
      `${line} is scraped`,
      async () => (await scrape('key-of-prometheus')).split('\n').includes(line),
      60_000,
    );

  const drain = rollout!.place('/var/run/ratchet/drain');
  writeFileSync(drain, '');
  assert.equal(await rollout!.ended('worker'), 0);
  assert.match(rollout!.said('worker'), /drain is there: this worker finishes its work and ends/);
  rmSync(drain);

  for (const pod of [orchestrator!, train!, metrics!, page!]) {
    const codes = await pod.end();
    for (const [name, code] of Object.entries(codes)) assert.equal(code, 0, `${pod.name}/${name}: ${pod.said(name)}`);
  }
  assert.deepEqual(await rollout!.end(), { policy: 0, worker: 0 });
  for (const pod of Object.values(running))
    for (const { name } of podOf(pod.name.replace('ratchet-', '')).containers)
      assert.doesNotMatch(pod.said(name), /key-of-|sk-of-/);
});

test('a policy server of its own is ready when it holds weights, and lets in who has its key', async (t) => {
  const here = await cluster(t);
  const policy = await RunningPod.start(t, podOf('policy'), here);
  await eventually('it lives', () =>
    fetch(`http://127.0.0.1:${policy.port(8420)}/liveness`).then(
      ({ ok }) => ok,
      () => false,
    ),
  );
  assert.equal(await policy.isReady('policy'), false);
  const weights = path.join(here.folder, 'outputs', 'weights');
  await saveModelFolder(preset(1), weights);
  const load = (key: string): Promise<Response> =>
    fetch(`http://127.0.0.1:${policy.port(8420)}/update_weights`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: bearer(key) },
      body: JSON.stringify({ name: 'v0', weight_dir: weights }),
    });
  assert.equal((await load('another')).status, 401);
  const loaded = await load('key-of-policy-servers');
  assert.equal(loaded.status, 200, await loaded.text());
  await policy.ready();
  assert.deepEqual(await policy.end(), { policy: 0 });
});

test('a weights agent beside vLLM is ready, and asks for its key', async (t) => {
  const vllm = await RunningPod.start(t, podOf('vllm'), await cluster(t));
  await vllm.ready();
  const locate = await fetch(`http://127.0.0.1:${vllm.port(8431)}/locate`, { method: 'POST', body: '{}' });
  assert.equal(locate.status, 401);
  assert.deepEqual(await vllm.end(), { 'weights-agent': 0 });
});

test('a further node of a trainer is ready when it has its Python, and joins the first one by their key', async (t) => {
  const here = await cluster(t);
  const port = await choosePort(0);
  const folder = path.join(here.folder, 'ratchet-train-node/ratchet/.venv/bin');
  mkdirSync(folder, { recursive: true });
  // PyTorch is not here: what answers as the Python with it does.
  const answers = `#!/bin/sh\n[ "$1" = -c ] && echo True && exit\necho '{"event": "listening"}' >&3\nexec sleep 600\n`;
  writeFileSync(path.join(folder, 'python'), answers, { mode: 0o755 });
  const trainer = { RATCHET_SECRET: 'k'.repeat(43) };
  const node = await RunningPod.start(t, podOf('train-node'), {
    ...here,
    secrets: { ...here.secrets, 'trainer-key': trainer },
    ports: { 29500: String(port) },
  });
  await node.ready();
  holdSecret(here.folder, { ...trainer });
  const first = await TrainerNodes.open({ address: '127.0.0.1', port });
  assert.match(first.missing({ kind: 'torch', count: 1 })!, /^1 of 2 nodes of the trainer/);
  await eventually('it joins', () => first.missing({ kind: 'torch', count: 1 }) === null, 60_000);
  assert.match(node.said('node'), /joined 127\.0\.0\.1:\d+ as node 1/);
  assert.deepEqual(await node.end(), { node: 0 });
  await closeProcesses();
});

test('a worker that cannot poll Temporal is not ready, and says why', async (t) => {
  const here = await cluster(t);
  const rollout = await RunningPod.start(t, podOf('rollout'), here);
  await rollout.ready();
  const ready = async (): Promise<unknown> => (await fetch(`http://127.0.0.1:${rollout.port(8425)}/ready`)).json();
  assert.deepEqual(await ready(), { status: 'ready' });
  here.stop();
  await eventually('it is not ready', async () => !(await rollout.isReady('worker')), 60_000);
  assert.match(JSON.stringify(await ready()), /Temporal does not answer it|it does not poll/);
});
