import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { mkdtemp, mkdir, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection } from '@temporalio/client';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openRunStore } from '../../store/index.ts';
import { decodeJson } from '../../store/objects.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { layout } from '../../runs/layout.ts';
import { taskQueues } from '../../core/names.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { localRoles } from '../../workers/stack/roles.ts';
import { startStack, type Stack } from '../../workers/stack/supervisor.ts';
import { vllmRole } from '../../workers/stack/vllm-role.ts';
import { type RunStatus, eventsQuery } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { startVllmStandIn } from '../stand-ins/vllm/server.ts';
import { writeStandInPython } from '../stand-ins/vllm/python.ts';
import { until } from '../eventually.ts';

/** Runs whose vLLM is started from their config, and killed: the stand-in has its routes, its arithmetic and its failures. */

const config = (servers: string, more: string): string => `
model = "preset:reverse-text-vllm-0.2m"
max_steps = 5
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
${more}
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 60
batch_size = 16
[trainer]
advantage = "std_normalized"
[checkpoints]
interval = 5
keep_last = 1
[inference]
kind = "vllm"
${servers}
[inference.vllm]
dtype = "float32"
max_model_len = 64
`;

let folder: string;
let vllmUrl: string;
let stack: Stack;
let client: Client;
const said: string[] = [];

before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-vllm-'));
  const program = `program = "${writeStandInPython(folder)}"`;
  await writeFile(path.join(folder, 'full.toml'), config(program, ''));
  await writeFile(path.join(folder, 'adapters.toml'), config(program, '[lora]\nr = 4\n'));
  // Another run on the same base: its v0 is the same, and no later version.
  const second = config(program, '[lora]\nr = 4\n').replace('learning_rate = 1e-3', 'learning_rate = 2e-3');
  await writeFile(path.join(folder, 'second.toml'), second);
  await writeFile(path.join(folder, 'other-base.toml'), second.replace('steps = 60', 'steps = 20'));
  const outputs = path.join(folder, 'outputs');
  await mkdir(outputs);
  // One server for both: it takes adapters, and the base of those whole.
  const { spec } = await loadRunConfig('adapters.toml', { projectFolder: folder });
  const vllm = await vllmRole(spec, folder);
  assert(vllm);
  vllmUrl = vllm.url;
  const policyPort = await choosePort(0);
  stack = await startStack({
    projectFolder: folder,
    roles: localRoles({ weightRoots: [outputs], policyPort, followsMetrics: false, vllm, count: { train: 2 } }),
    log: (line) => void said.push(line),
  });
  const connection = await Connection.connect({ address: stack.temporalAddress });
  client = new Client({ connection });
});

after(async () => {
  await stack?.stop();
  await rm(folder, { recursive: true, force: true });
});

function rowsOf(run: string): Record<string, number>[] {
  const file = path.join(folder, 'outputs', run, 'metrics.jsonl');
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1); // the last may be half written
  return lines.map((line) => JSON.parse(line) as Record<string, number>);
}

async function start(run: string, file: string, overrides: Readonly<Record<string, string>> = {}) {
  return client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: run,
    taskQueue: taskQueues.orchestrator,
    args: [{ config: file, run, overrides }],
  });
}

async function untilStep(run: string, step: number): Promise<void> {
  await until(`the row of step ${step}`, () => rowsOf(run).some((row) => row['step'] === step));
}

for (const [file, what] of [
  ['adapters.toml', 'adapters'],
  ['full.toml', 'full weights'],
] as const) {
  test(`a vLLM that is killed again and again loses no ${what}: the run ends as one that nobody disturbed`, async () => {
    const calm = await (await start(`calm-${file.slice(0, 4)}`, file)).result();
    const run = `killed-${file.slice(0, 4)}`;
    const handle = await start(run, file);
    for (const step of [1, 3]) {
      await untilStep(run, step);
      await delay(150); // into the rollouts of the next one
      process.kill(-stack.pids()['vllm server']!, 'SIGKILL');
    }
    const ended = await handle.result();
    assert.deepEqual([ended.step, ended.ledger.isSound], [5, true]);
    assert.equal(ended.policyDigest, calm.policyDigest, 'the same rollouts, from the same weights');
    assert((stack.restarts()['vllm server'] ?? 0) >= 2, said.join('\n'));
    const canaries = rowsOf(run).flatMap((row) => row['inference/canary_difference'] ?? []);
    assert(canaries.length > 0 && canaries.every((difference) => difference < 1e-5), canaries.join());
  });
}

/** Names of the adapters at the vLLM of the stack, without digests. */
async function adapters(): Promise<string[]> {
  const secret = readFileSync(path.join(folder, '.ratchet/secret'), 'utf8').trim();
  const answer = await fetch(`${vllmUrl}/v1/models`, { headers: { authorization: `Bearer ${secret}` } });
  const { data } = (await answer.json()) as { data: { id: string }[] };
  return data.slice(1).map(({ id }) => id.split('@', 1)[0]!);
}

test('two runs of adapters share a vLLM: it dies, one of them is ended and goes on, and both end as each does alone', async () => {
  const files = { 'first-shares': 'adapters.toml', 'second-shares': 'second.toml' };
  const alone = [];
  for (const [run, file] of Object.entries(files)) alone.push(await (await start(`${run}-alone`, file)).result());
  assert.notEqual(alone[0]!.policyDigest, alone[1]!.policyDigest);
  assert.deepEqual(await adapters(), [], 'runs that have ended leave nothing there');
  const [first, second] = await Promise.all(Object.entries(files).map(([run, file]) => start(run, file)));
  const have = async () => new Set((await adapters()).map((name) => name.split(':', 1)[0]));
  await until('both have adapters there', async () => (await have()).size === 2);
  process.kill(-stack.pids()['vllm server']!, 'SIGKILL');
  await untilStep('first-shares', 2);
  await first!.terminate('as a test wants it');
  const again = await start('first-shares', 'adapters.toml');
  const ended = await Promise.all([again.result(), second!.result()]);
  assert.deepEqual(
    ended.map(({ policyDigest, ledger }) => [policyDigest, ledger.isSound]),
    alone.map(({ policyDigest }) => [policyDigest, true]),
  );
  assert.deepEqual(await adapters(), []);
});

test('a run of adapters over another base waits for the server until the run that has it ends, and says why', async () => {
  const first = await start('has-base', 'adapters.toml', { max_steps: '1000' });
  await until('its adapters are there', async () => (await adapters()).some((name) => name.startsWith('has-base:')));
  const other = await start('other-base', 'other-base.toml');
  await until(
    'it says why it waits',
    async () => {
      const { pendingActivities } = (await other.describe()).raw;
      const said = (pendingActivities ?? []).map(({ lastFailure }) => lastFailure?.message ?? '');
      return said.some((message) => message.includes('has adapters of has-base'));
    },
    { withinMs: 120_000 },
  );
  await first.cancel();
  await assert.rejects(first.result());
  const ended = await other.result();
  assert.deepEqual([ended.step, ended.ledger.isSound], [5, true]);
});

test('what top_p, top_k and min_p leave is what a vLLM tells: the policy’s log probabilities are the trainer’s, to the same bits when it dies', async (t) => {
  const model = path.join(folder, '.ratchet/models/reverse-text-vllm-0.2m-0');
  const server = await startVllmStandIn({ model, servedName: 'base', isDevelopment: true });
  t.after(() => server.close());
  const cut = 'max_tokens = 6\ntop_p = 0.8\ntop_k = 8\nmin_p = 0.02';
  const text = config(`url = "${server.url}"`, '')
    .replace('max_tokens = 6', cut)
    .replace('max_steps = 5', 'max_steps = 2');
  // A bound of its own, so that the factor on tokens is reported.
  await writeFile(path.join(folder, 'cut.toml'), `${text}[trainer.correction]\nweight_max = 3.0\n`);
  const calm = await (await start('cut', 'cut.toml')).result();
  const store = openRunStore(`file:${path.join(folder, 'outputs')}/`, 'cut');
  const commits = [];
  for (const step of [1, 2])
    commits.push(decodeJson<StepCommit>((await store.read(layout.commit('main', step)))!, 'the commit'));
  for (const { step, metrics } of commits) {
    // Truncated sampling makes each token likelier than under the policy; with the policy's own values the weight would
    // be 1.
    const weight = metrics['correction/weight'] ?? NaN;
    assert.ok(weight > 0 && weight < 0.999, `step ${step}: ${weight}`);
  }
  const handle = await start('cut-killed', 'cut.toml');
  await untilStep('cut-killed', 1);
  for (const worker of ['train worker', 'train worker 2']) process.kill(stack.pids()[worker]!, 'SIGKILL');
  assert.equal((await handle.result()).policyDigest, calm.policyDigest);
});

test('of two servers one samples from other weights than are trained: it is quarantined, and the other one continues', async (t) => {
  const model = path.join(folder, '.ratchet/models/reverse-text-vllm-0.2m-0');
  const open = () => startVllmStandIn({ model, servedName: 'base', isDevelopment: true });
  const [well, sick] = [await open(), await open()];
  t.after(() => Promise.all([well.close(), sick.close()]));
  await writeFile(path.join(folder, 'two.toml'), config(`url = ["${well.url}", "${sick.url}"]`, ''));
  const handle = await start('two', 'two.toml');
  await untilStep('two', 1);
  sick.faults.keepsWeights = true;
  await untilStep('two', 3);
  const { progress } = await handle.query<RunStatus>('status');
  assert.deepEqual(progress.quarantinedServers, [sick.url]);
  const asked = sick.asked.length;
  const ended = await handle.result();
  assert.deepEqual([ended.step, ended.ledger.isSound], [5, true]);
  const scored = sick.asked.slice(asked).filter((route) => route === 'POST /v1/completions');
  assert(scored.length <= 8, `${scored.length}: it is asked for canaries, and for no rollouts`);
  const events = await handle.query(eventsQuery, 0);
  assert(
    events.some(({ text }) => text.startsWith(`canary: ${sick.url} is quarantined`)),
    JSON.stringify(events),
  );
  assert(rowsOf('two').some((row) => row['inference/servers_quarantined'] === 1));
});
