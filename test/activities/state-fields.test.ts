import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { readCommit, readJson, storeOf } from '../../runs/run-access.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import type { Trainer } from '../../backends/trainer/types.ts';
import { batchOf } from '../../core/rl/learning/batch.ts';
import { decodeSafetensors, encodeSafetensors, type NamedTensor } from '../../engine/index.ts';
import { layout } from '../../runs/layout.ts';
import { nothingLost } from '../../core/rl/lost-work.ts';
import { nextBeta } from '../../core/rl/learning/kl-controller.ts';
import type { KeptGroups, LeasedGroups, RunState, StepPlan } from '../../core/rl/run-state.ts';
import { selectGroups } from '../../core/rl/learning/selection.ts';
import { stepOutcomes } from '../../workflows/step/step-outcomes.ts';
import { act, type Committed, commitFirst, makeRun, openRoles, sampleRound, type Roles, type TestRun } from './runs.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';

/**
 * Everything a commit and its checkpoint hold is there because N + N steps would differ from 2N without it. Here two
 * steps are continued for two more, once whole and once for each field with that field forgotten: weights, ledger or what
 * happens next must differ, or the field is excused by name.
 */
const excused: Readonly<Record<string, string>> = {
  schemaVersion: 'for a later version of Ratchet that reads an older commit',
  lineage: 'says whose state it is; the handle decides where things are written',
  'curriculum.pools.bytes': 'how large an object is, for people; its sha256 decides what it is',
  'surplus.*.scored.bytes': 'as curriculum.pools.bytes',
  'surplus.*.scored.count': 'how many rows an object has, for people',
  'overrides.stopAfter': 'a wish for the execution that has ended: a run that starts again forgets it on purpose',
};

/** So few that each step repeats examples. */
const datasets = [{ name: 'reverse-text', weight: 1, datasetLength: 6 }];

const settings = {
  'checkpoints.interval': '1',
  max_off_policy_steps: '1',
  buffer: '{ easy_threshold = 0.3, hard_threshold = 0.05, hard_fraction = 0.3 }',
  kl_penalty: '{ beta = 0.2, target_kl = 0.5, ref_sync_steps = 2 }',
};

/** A step as the workflow makes it: surplus first, then a round; what is over waits. */
async function step(test: TestRun, roles: Roles, from: Committed): Promise<Committed & { told: unknown }> {
  const { run, spec } = test;
  const { state } = from;
  const next = state.step + 1;
  const { policy, reference, klBeta, overrides } = state;
  const sampled = await sampleRound(test, roles, { step: next, policy, curriculum: state.curriculum, datasets });
  const { round } = sampled;
  const judged = await roles.filterGroups({ run, round, scored: sampled.scored, curriculum: sampled.curriculum });
  const curriculum = judged.curriculum!;
  const fresh: KeptGroups = {
    scored: sampled.scored,
    policyStep: round.policyStep,
    ordinals: `${round.first}-${round.last}`,
  };
  const kept = [...state.surplus, fresh];
  const size = { groups: 1, total: null }; // of the two that are sampled: one is over, and grows stale
  const selection = selectGroups({ step: next, size, maxOffPolicySteps: spec.maxOffPolicySteps, kept });
  const { packed } = await roles.packBatch({ run, step: next, trained: selection.trained, scored: [sampled.scored] });
  const planned = await roles.planStep({
    run,
    step: next,
    attempt: 1,
    from: policy,
    reference,
    klBeta,
    overrides,
    packed,
  });
  const trained = await act(roles.trainStep, { run, plan: planned.plan });
  const renews = spec.kl.refSyncSteps !== null && next % spec.kl.refSyncSteps === 0;
  const made: RunState = {
    ...state,
    step: next,
    policy: trained.policy!,
    reference: renews ? trained.policy! : reference,
    klBeta: nextBeta({ beta: klBeta, targetKl: spec.kl.targetKl, measuredKl: trained.metrics['kl_divergence'] ?? 0 }),
    curriculum,
    surplus: selection.surplus,
  };
  const outcomes = stepOutcomes(next, [
    {
      ...selection,
      packed,
      curriculum,
      issued: [[round.first, round.last]],
      ended: selection.stale === '' ? [] : [{ stale: selection.stale }],
      rows: 0,
      figures: {},
      lost: nothingLost,
    },
  ]);
  const { sha256 } = await roles.commitStep({
    run,
    parent: from.parent,
    plan: planned.plan,
    optimizer: trained.optimizer,
    outcomes,
    metrics: {},
    state: made,
  });
  await act(roles.publishVersion, { run, policy: trained.policy!, optimizer: trained.optimizer });
  const pinned = [made.reference.step];
  if (planned.snapshot) await act(roles.saveCheckpoint, { run, step: next, pinned });
  const plan = await readJson<StepPlan>(run, planned.plan);
  const { leases } = await readJson<LeasedGroups>(run, round.leases);
  const told = [planned.learningRate, plan.klBeta, planned.snapshot, outcomes, round.policyStep, leases, pinned];
  return { state: made, parent: sha256, told };
}

/** The run's folder as it is now, in another place. */
async function copyOf(t: TestContext, test: TestRun): Promise<TestRun> {
  const place = await mkdtemp(path.join(tmpdir(), 'ratchet-fields-'));
  t.after(() => rm(place, { recursive: true, force: true }));
  const folder = path.join(place, test.run.name);
  await cp(test.folder, folder, { recursive: true });
  const run = { ...test.run, store: resolveStoreUri('.', place) };
  return { ...test, run, folder, store: storeOf(run) };
}

/** Result of two further steps: weights, ledger, reports, and work begun. A failure is a difference, too. */
async function goOn(t: TestContext, original: TestRun, from: Committed): Promise<string> {
  const test = await copyOf(t, original);
  try {
    const { policy, pendingEvals } = from.state;
    // The policy servers are brought to a version by its folder, its file and its digest; evaluations due are begun.
    const broadcast = [policy.step, policy.digest, policy.weights, policy.file.key, policy.file.sha256];
    const begun = [`evaluate v${pendingEvals.join()}`, `after step ${from.state.step}`];
    const one = await step(test, openRoles(), from);
    const two = await step(test, openRoles(), one);
    return JSON.stringify([
      broadcast,
      begun,
      one.state.policy.digest,
      two.state.policy.digest,
      one.told,
      two.told,
      two.state.klBeta,
    ]);
  } catch (error) {
    return `failed: ${(error as Error).message.replaceAll(test.store.uri, '')}`;
  }
}

type Path = readonly (string | number)[];

/** Every leaf of a value, by its path. */
function leaves(value: unknown, at: Path = []): Path[] {
  if (typeof value !== 'object' || value === null) return [at];
  const found = Object.entries(value).flatMap(([key, item]) => leaves(item, [...at, key]));
  return found.length > 0 ? found : [at];
}

/** A copy without the value at a path; null at the leaf of a text or number. */
function without<T>(value: T, [key, ...rest]: Path): T {
  const copy = structuredClone(value) as Record<string | number, unknown>;
  if (rest.length === 0) delete copy[key!];
  else copy[key!] = without(copy[key!], rest);
  return copy as T;
}

describe('a run that continues with a field of its state forgotten is another run', () => {
  test('every field of the state makes a difference to weights, ledger or what happens next, or is excused by name', async (t) => {
    const test = await makeRun(t, settings);
    const roles = openRoles();
    let from: Committed = await commitFirst(test, roles);
    from = { ...from, state: { ...from.state, overrides: { learningRate: 5e-4, stopAfter: 50 }, pendingEvals: [1] } };
    for (let i = 0; i < 2; i++) from = await step(test, roles, from);

    const whole = await goOn(t, test, from);
    assert.equal(await goOn(t, test, from), whole, 'whole, it continues as it would have');
    assert.ok(!whole.startsWith('failed'), whole);
    const matters = new Map<string, boolean>();
    for (const field of leaves(from.state)) {
      const forgotten = await goOn(t, test, { ...from, state: without(from.state, field) });
      const name = field.join('.').replace(/^surplus\.\d+/, 'surplus.*'); // one of them may only grow stale
      matters.set(name, forgotten !== whole || matters.get(name) === true);
    }
    const makesNone = [...matters.keys()].filter((name) => !matters.get(name));
    assert.deepEqual(makesNone.sort(), Object.keys(excused).sort());
  });

  test('a checkpoint whose manifest lost any field is passed over by name', async (t) => {
    const test = await makeRun(t, settings);
    const roles = openRoles();
    let from: Committed = await commitFirst(test, roles);
    for (let i = 0; i < 2; i++) from = await step(test, roles, from);
    const file = path.join(test.folder, layout.checkpoint('main', 2), 'manifest.json');
    const manifest = JSON.parse(await readFile(file, 'utf8')) as object;
    for (const field of leaves(manifest)) {
      await writeFile(file, `${JSON.stringify(without(manifest, field))}\n`);
      const recovery = await openRoles().policyTrainer.bringTo(test.run, from.state.policy);
      assert.deepEqual([recovery!.restoredFrom, recovery!.damaged.length], [1, 1], field.join('.'));
    }
  });
});

describe('the engine, restored with a part of its checkpoint forgotten, ends with other weights', () => {
  test('weights, both moments and the step count each make a difference; whole, there is none', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const first = await commitFirst(test, roles);
    const made = await step(test, roles, first);
    const committed = await planOf(test, made);
    const packed = await openBatch(test.run, committed);
    const samples = await packed.read([...packed.rows.keys()]);
    // Every row has something to learn, whatever this sampling's rewards were.
    const batch = batchOf(
      samples.map((row, i) => ({
        ...row,
        behaviorLogprobs: row.behaviorLogprobs!,
        advantages: row.advantages.map(() => (i % 2 ? 1 : -0.5)),
      })),
    );
    const v0 = await test.store.localFolder(layout.weights('main', 0));
    const trainer = new OnnxTrainer({ threads: 1, provider: 'cpu' });
    t.after(() => trainer.close());
    const plan = { ...committed, learningRate: 1e-2 };
    const twoSteps = async (of: Trainer) => {
      for (let i = 0; i < 2; i++) assert.ok((await of.trainStep({ plan, batch, referenceFolder: v0 })).applied);
      return of.digest();
    };

    const opened = { lora: null, seed: 3 };
    await trainer.open(v0, opened);
    await trainer.restoreOptimizer(null);
    await twoSteps(trainer);
    const halfway = await mkdtemp(path.join(tmpdir(), 'ratchet-half-'));
    t.after(() => rm(halfway, { recursive: true, force: true }));
    await trainer.exportTo(halfway, { base: '' });
    const optimizer = await trainer.saveOptimizer();
    const undisturbed = await twoSteps(trainer);

    const restored = async (folder: string, state: Uint8Array | null) => {
      await trainer.open(folder, opened);
      await trainer.restoreOptimizer(state);
      return twoSteps(trainer);
    };
    assert.equal(await restored(halfway, optimizer), undisturbed);
    assert.notEqual(await restored(v0, optimizer), undisturbed, 'weights');
    assert.notEqual(await restored(halfway, null), undisturbed, 'the optimizer');
    const { tensors } = decodeSafetensors(optimizer, 'the optimizer state');
    assert.deepEqual([...tensors.keys()].sort(), ['first_moment', 'second_moment', 'step']);
    for (const [name, { shape, data }] of tensors) {
      const zero: NamedTensor = { shape, data: data.slice() };
      new Uint8Array(zero.data.buffer).fill(0);
      const state = encodeSafetensors({ ...Object.fromEntries(tensors), [name]: zero });
      assert.notEqual(await restored(halfway, state), undisturbed, name);
    }
  });
});

async function planOf(test: TestRun, { state }: Committed): Promise<StepPlan> {
  const { commit } = (await readCommit(test.run, state.step))!;
  return readJson<StepPlan>(test.run, commit.plan!);
}
