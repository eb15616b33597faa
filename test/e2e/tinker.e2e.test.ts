import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { demonstrationRows } from '../../activities/demonstration-rows.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { randomStream } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/batch.ts';
import { createPreset, EngineTrainer, saveModelFolder } from '../../engine/index.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { StandInProcess } from '../stand-ins/tinker/process.ts';
import { openSmallProject, type SmallProject } from './small-run.ts';

const steps = 14;
const environment = { id: 'reverse-text', args: { min_length: 3, max_length: 3 } };

let folder: string;
let server: StandInProcess;
let project: SmallProject;
let undisturbed: RunSummary;
before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-e2e-'));
  const base = path.join(folder, 'base');
  await makeBase(base);
  const callMs = { forward_backward: 150, optim_step: 50 };
  server = await StandInProcess.start({ folder: path.join(folder, 'server'), model: base, callMs });
  const config = `
model = "${base}"
max_steps = ${steps}
batch_size = 128
rollouts_per_example = 8
learning_rate = 1e-2
max_async_level = 0
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 3 }
[lora]
r = 8
[trainer]
kind = "tinker"
url = "${server.url}"
advantage = "std_normalized"
beta2 = 0.98
[inference]
kind = "tinker"
[checkpoints]
interval = 7
`;
  project = await openSmallProject({ 'undisturbed.toml': config, 'killed.toml': config });
  undisturbed = await (await start('undisturbed')).result();
});
after(async () => {
  await project?.close();
  await server?.kill();
  await rm(folder, { recursive: true, force: true });
});

test('a run on a Tinker server learns, and every version of it lies in the store as an adapter', async () => {
  assert.equal(undisturbed.step, steps);
  assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
  const rewards = (await metricsOf('undisturbed')).flatMap((row) => row['train/reward'] ?? []);
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [first, last] = [mean(rewards.slice(0, 4)), mean(rewards.slice(-4))];
  assert.ok(last > first + 0.03, `reward went from ${first} to ${last}: ${rewards.join(' ')}`);
  const mismatches = (await metricsOf('undisturbed')).flatMap((row) => row['mismatch_kl'] ?? []);
  assert.ok(mismatches.length === steps && mismatches.every((kl) => kl < 1e-5), mismatches.join(' '));
  const config = await readFile(
    path.join(project.folder, `outputs/undisturbed/weights/step_${steps}/adapter_config.json`),
    'utf8',
  );
  assert.match(config, /"peft_type": "LORA"/);
});

test('the server killed in the middle of a step: the run goes on to the same weights, and no rollout is generated again', async () => {
  const handle = await start('killed');
  await untilInStep('killed', 4);
  await server.kill();
  await delay(1_500);
  await server.start();
  const summary = await handle.result();
  assert.equal(summary.policyDigest, undisturbed.policyDigest);
  assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
  const rows = await metricsOf('killed');
  assert.deepEqual(
    rows.filter((row) => (row['lost/rollouts'] ?? 0) > 0),
    [],
    'no rollout was lost',
  );
});

async function start(name: string) {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });
}

async function metricsOf(run: string): Promise<Record<string, number>[]> {
  const text = await readFile(path.join(project.folder, `outputs/${run}/metrics.jsonl`), 'utf8');
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, number>);
}

/** Resolves while the run's `count`-th train step is under way. */
async function untilInStep(run: string, count: number): Promise<void> {
  const log = path.join(project.folder, 'outputs', run, 'logs/attempt_1/train.log');
  for (;;) {
    const text = await readFile(log, 'utf8').catch(() => '');
    const begun = text.split('\n').filter((line) => line.includes(' trainStep ') && line.includes(': starts'));
    if (begun.length >= count) break;
    await delay(5);
  }
  await delay(80);
}

/** A model that has seen demonstrations, most of them wrong: what a server would have as its base. */
async function makeBase(to: string): Promise<void> {
  const model = createPreset('preset:reverse-text-0.2m', { seed: 0 });
  const begun = `${to}.begun`;
  await mkdir(begun, { recursive: true });
  await saveModelFolder(model, begun);
  const { dataset, demonstrate } = await openEnvironment(environment);
  const engine = await EngineTrainer.open(begun, { threads: 1 });
  const optimizer = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
  for (let step = 0; step < 80; step++) {
    const samples: TrainSample[] = [];
    for (let row = 0; row < 24; row++) {
      const random = randomStream('base', step, row);
      const example = dataset.at(Math.floor(random() * dataset.length));
      const shown = await demonstrate!(example, random);
      samples.push(
        ...demonstrationRows(model.tokenizer, example.prompt, shown, { tools: undefined, templateArguments: {} }),
      );
    }
    await engine.sftStep(samples, { learningRate: 4e-3, optimizer });
  }
  await mkdir(to, { recursive: true });
  await engine.exportWeights(to);
  await engine.close();
}
