import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { decodeRows } from '../../store/objects.ts';
import { demonstrationRows } from '../../core/rl/rollout/demonstration-rows.ts';
import { turnSeed } from '../../play/policy/sample-policy.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { randomStream } from '../../core/random.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import { createPreset, EngineOptimizer, saveModelFolder } from '../../engine/index.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { entriesIn, type Entry } from '../stand-ins/tinker/journal.ts';
import { StandInProcess } from '../stand-ins/tinker/process.ts';
import { openSmallProject, type SmallProject } from './small-run.ts';
import { eventually } from '../eventually.ts';
import { layout } from '../../runs/layout.ts';

const steps = 14;
const overlappingSteps = 6;
const overlappingSeed = 7;
const groupsOfStep = 16;
const rolloutsOfGroup = 8;
/** Groups whose rewards are all the same make room for others. */
const groupsMax = 3 * overlappingSteps * groupsOfStep;
const environment = { id: 'reverse-text', args: { min_length: 3, max_length: 3 } };

let folder: string;
let server: StandInProcess;
/** One whose turns take half a second, sixteen at once. */
let sampler: StandInProcess;
let project: SmallProject;
let undisturbed: RunSummary;
before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-e2e-'));
  const base = path.join(folder, 'base');
  await makeBase(base);
  const callMs = { forward_backward: 150, optim_step: 50 };
  server = await StandInProcess.start({ folder: path.join(folder, 'server'), model: base, callMs });
  sampler = await StandInProcess.start({ folder: path.join(folder, 'sampler'), model: base, callMs, tokenMs: 100 });
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
  const overlapping = config
    .replace(`max_steps = ${steps}`, `max_steps = ${overlappingSteps}\nseed = ${overlappingSeed}`)
    .replace('max_async_level = 0', 'max_async_level = 1')
    .replace(server.url, sampler.url)
    .replace('[inference]', '[inference]\nmax_concurrent = 16');
  project = await openSmallProject({
    'undisturbed.toml': config,
    'killed.toml': config,
    'orphaned.toml': config,
    'overlapping.toml': overlapping,
  });
  undisturbed = await (await start('undisturbed')).result();
});
after(async () => {
  await project?.close();
  await server?.kill();
  await sampler?.kill();
  await rm(folder, { recursive: true, force: true });
});

test('a run on a Tinker server learns, and every version of it is in the store as an adapter', async () => {
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

test('the server killed in the middle of a step: the run continues to the same weights, and no rollout is generated again', async () => {
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

test('the worker that trains killed in the middle of a step: the next one restores a checkpoint of the server and trains the stored batches again, to the same weights', async () => {
  const handle = await start('orphaned');
  await untilInStep('orphaned', 4);
  process.kill(await holderOf('orphaned'), 'SIGKILL');
  const summary = await handle.result();
  assert.equal(summary.policyDigest, undisturbed.policyDigest);
  assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
});

test('the server killed while turns are sampled beside the training: what was stored is not asked for again, and no version is older than allowed', async () => {
  const run = 'overlapping';
  const journal = path.join(folder, 'sampler');
  const rollouts = new Map(
    Array.from({ length: groupsMax * rolloutsOfGroup }, (_, i) => {
      const [group, index] = [Math.floor(i / rolloutsOfGroup) + 1, i % rolloutsOfGroup];
      return [turnSeed(overlappingSeed, 'main', group, index, 0) % (2 ** 31 - 1), `${group}/${index}`];
    }),
  );
  const askedOf = (entries: readonly Entry[]): string[] => turnsIn(entries).map(({ seed }) => rollouts.get(seed)!);

  const handle = await start(run);
  const kills: { readonly stored: Set<string>; readonly pending: readonly string[]; readonly entries: number }[] = [];
  for (const step of [2, 4]) {
    const stored = await eventually(
      `16 rollouts of step ${step}`,
      () => storedOf(run, step),
      ({ size }) => size >= 16,
      { everyMs: 20 },
    );
    const before = entriesIn(journal);
    const answered = new Set(before.flatMap((entry) => ('done' in entry ? [entry.done] : [])));
    await sampler.kill();
    const pending = turnsIn(before).filter(({ future }) => !answered.has(future));
    assert.ok(pending.length > 0, 'turns were being sampled');
    assert.ok(stored.size < groupsOfStep * rolloutsOfGroup, `${stored.size} rollouts of step ${step} were stored`);
    kills.push({
      stored: await storedOf(run),
      pending: pending.map(({ seed }) => rollouts.get(seed)!),
      entries: entriesIn(journal).length,
    });
    await delay(1_000);
    await sampler.start();
  }
  const { step, ledger } = await handle.result();
  assert.equal(step, overlappingSteps);
  assert.ok(ledger.isSound, JSON.stringify(ledger));
  const ended = Object.values(ledger.counts).reduce((sum, count) => sum + count, 0);
  assert.ok(ended >= overlappingSteps * groupsOfStep, JSON.stringify(ledger.counts));

  const entries = entriesIn(journal);
  const asked = askedOf(entries);
  assert.ok(
    asked.every((one) => one !== undefined),
    'every turn is one of the run’s',
  );
  for (const { stored, pending, entries: before } of kills) {
    const later = askedOf(entries.slice(before));
    const again = later.filter((one) => stored.has(one));
    assert.deepEqual(again, [], `of ${stored.size} stored rollouts`);
    const lost = pending.filter((one) => !stored.has(one) && !later.includes(one));
    assert.deepEqual(lost, [], 'what was being sampled is sampled again');
  }
  const repeated = asked.length - new Set(asked).size;
  assert.ok(
    repeated <= 2 * 32,
    `${repeated} turns were asked for twice: those in flight at two kills, and those not stored yet`,
  );

  const ages = (await metricsOf(run)).flatMap((row) => row['off_policy/max'] ?? []);
  assert.ok(ages.length === overlappingSteps && Math.max(...ages) === 1, ages.join(' '));
  for (let n = 1; n <= overlappingSteps; n++) {
    const groups = await groupsOf(run, n);
    assert.ok(groups.length >= groupsOfStep);
    for (const { policyStep, rollouts: played } of groups) {
      assert.ok(policyStep >= n - 2 && policyStep < n, `step ${n} has a group of v${policyStep}`);
      for (const { turns } of played) {
        assert.deepEqual(
          turns.map((turn) => turn.policyStep),
          [policyStep],
        );
      }
    }
  }
});

/** Turns that a server was asked for; a token without a seed of its own shows only that a version is there. */
function turnsIn(entries: readonly Entry[]): { readonly future: string; readonly seed: number }[] {
  return entries.flatMap((entry) => {
    if (!('future' in entry) || entry.seed === undefined || entry.seed === 0) return [];
    return [{ future: entry.future, seed: entry.seed }];
  });
}

/** Stored rollouts, of one step or of all, as `GROUP/INDEX`. */
async function storedOf(run: string, step?: number): Promise<Set<string>> {
  const rows = await rowsBelow(run, step, (name) => /^chunk_\d+_of_\d+.*\.jsonl$/.test(name));
  const finished = rows as { group?: number; index?: number; outcome?: string }[];
  return new Set(finished.flatMap(({ group, index, outcome }) => (outcome === undefined ? [] : [`${group}/${index}`])));
}

async function groupsOf(run: string, step: number): Promise<ScoredGroup[]> {
  return (await rowsBelow(run, step, layout.isScored)) as ScoredGroup[];
}

async function rowsBelow(run: string, step: number | undefined, isIt: (name: string) => boolean): Promise<unknown[]> {
  const below = path.join(project.folder, 'outputs', run, 'rollouts', step === undefined ? '' : `step_${step}`);
  const names = await readdir(below, { recursive: true }).catch(() => []);
  const files = await Promise.all(
    names
      .filter((name) => isIt(path.basename(name)))
      .map((name) => readFile(path.join(below, name)).catch(() => Buffer.of())),
  );
  return files.flatMap((bytes) => decodeRows<unknown>(bytes, below));
}

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
    const begun = text.split('\n').filter((line) => line.includes(' trainBatch ') && line.includes(': starts'));
    if (begun.length >= count) break;
    await delay(5);
  }
  await delay(80);
}

/** The process that holds the run. */
async function holderOf(run: string): Promise<number> {
  const claims = path.join(project.folder, 'outputs', run, 'claims/trainer');
  const names = (await readdir(claims)).filter((name) => name.endsWith('.json'));
  const texts = await Promise.all(names.map((name) => readFile(path.join(claims, name), 'utf8')));
  const [newest] = texts
    .map((text) => JSON.parse(text) as { epoch: number; holder: string })
    .sort((a, b) => b.epoch - a.epoch);
  return Number(newest!.holder.split('-').at(-2));
}

/** A model that has seen demonstrations, most of them wrong: what a server would have as its base. */
async function makeBase(to: string): Promise<void> {
  const model = createPreset('preset:reverse-text-0.2m', { seed: 0 });
  const begun = `${to}.begun`;
  await mkdir(begun, { recursive: true });
  await saveModelFolder(model, begun);
  const opened = await openEnvironment(environment);
  const { dataset } = opened;
  const engine = await EngineOptimizer.open(begun, { threads: 1 });
  const optimizer = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
  for (let step = 0; step < 80; step++) {
    const samples: TrainSample[] = [];
    for (let row = 0; row < 24; row++) {
      const random = randomStream('base', step, row);
      const example = dataset.at(Math.floor(random() * dataset.length));
      const shown = await opened.demonstrate!(example, random);
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
