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
let stack: Stack;
let client: Client;
const said: string[] = [];

before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-vllm-'));
  const program = `program = "${writeStandInPython(folder)}"`;
  await writeFile(path.join(folder, 'full.toml'), config(program, ''));
  await writeFile(path.join(folder, 'adapters.toml'), config(program, '[lora]\nr = 4\n'));
  const outputs = path.join(folder, 'outputs');
  await mkdir(outputs);
  // One server for both: it takes adapters, and the base of those whole.
  const { spec } = await loadRunConfig('adapters.toml', { projectFolder: folder });
  const vllm = await vllmRole(spec, folder);
  assert(vllm);
  const policyPort = await choosePort(0);
  stack = await startStack({
    projectFolder: folder,
    roles: localRoles({ weightRoots: [outputs], policyPort, followsMetrics: false, vllm }),
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

async function start(run: string, file: string) {
  return client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: run,
    taskQueue: taskQueues.orchestrator,
    args: [{ config: file, run, overrides: {} }],
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
  process.kill(stack.pids()['train worker']!, 'SIGKILL');
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
