import assert from 'node:assert/strict';
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { TrainedBatch } from '../../activities/index.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { putJson } from '../../store/objects.ts';
import { partsOfPlan } from '../../runs/rollouts/batches.ts';
import { beginLineage } from '../../runs/lineages/lineages.ts';
import { readJson, requireCommit, specOf, storeOf } from '../../runs/run-access.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { RatchetError } from '../../core/errors.ts';
import { engineFailuresMax } from '../../core/limits.ts';
import { layout } from '../../runs/layout.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { PackedRow, TrainSample } from '../../core/rl/learning/batch.ts';
import type { SampleRequest } from '../../backends/inference/index.ts';
import { recoveryLines } from '../../workflows/control/lines.ts';
import { hasCode, text } from '../store/store.contract.ts';
import {
  act,
  advance,
  type Committed,
  commitFirst,
  ChainTrainer,
  damage,
  makeRun,
  openRoles,
  placeOf,
  planNext,
  runIn,
  type Roles,
  type TestRun,
  WordsInference,
} from '../activities/runs.ts';

/** A run of five committed steps with checkpoints 0, 2 and 4. */
async function fiveSteps(t: TestContext, overrides: Readonly<Record<string, string>> = {}) {
  const test = await makeRun(t, overrides);
  const roles = openRoles();
  return { test, roles, versions: await steps(test, roles, 5) };
}

async function steps(test: TestRun, roles: Roles, count: number): Promise<Committed[]> {
  const versions = [await commitFirst(test, roles)];
  for (let i = 0; i < count; i++) versions.push(await advance(test, roles, versions.at(-1)!));
  return versions;
}

/** The run's folder in another place, where nothing of it is in this process's memory. */
async function copyOf(t: TestContext, { run, folder }: TestRun): Promise<RunHandle> {
  const place = await mkdtemp(path.join(tmpdir(), 'ratchet-copy-'));
  t.after(() => rm(place, { recursive: true, force: true }));
  await cp(folder, path.join(place, run.name), { recursive: true });
  return { ...run, store: resolveStoreUri('.', place) };
}

describe('bringing a trainer to a version', () => {
  test('a trainer that is there has nothing to do', async (t) => {
    const { test, roles, versions } = await fiveSteps(t);
    const [trainer] = roles.trainers;
    const before = trainer!.trained.length;
    assert.equal(await roles.policyTrainer.bringTo(test.run, versions[5]!.state.policy), null);
    assert.deepEqual([trainer!.trained.length, roles.trainers.length], [before, 1]);
  });

  test('a lost trainer is restored from the newest checkpoint and trains the stored batches again, to the same weights', async (t) => {
    const { test, versions } = await fiveSteps(t);
    const { policyTrainer, trainers } = openRoles();
    const recovery = await policyTrainer.bringTo(test.run, versions[5]!.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 4, replayedSteps: 1, damaged: [] });
    assert.deepEqual(trainers[0]!.trained, ['step 5']);
    assert.equal(await policyTrainer.bringTo(test.run, versions[5]!.state.policy), null);
  });

  test('a run whose trainer is lost after every step has the weights of an undisturbed run', async (t) => {
    const { versions } = await fiveSteps(t);
    const disturbed = await makeRun(t);
    let last = await commitFirst(disturbed, openRoles());
    for (let i = 0; i < 5; i++) last = await advance(disturbed, openRoles(), last);
    assert.equal(last.state.policy.digest, versions[5]!.state.policy.digest);
  });

  test('a run that was copied elsewhere is restored there', async (t) => {
    const { test, versions } = await fiveSteps(t);
    const recovery = await openRoles().policyTrainer.bringTo(await copyOf(t, test), versions[5]!.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 4, replayedSteps: 1, damaged: [] });
  });

  test('a GPU worker that goes from one run to another and back opens a trainer for each', async (t) => {
    const { test, roles, versions } = await fiveSteps(t);
    const other = await runIn(path.dirname(test.folder), {}, 'others');
    let last = await commitFirst(other, roles);
    last = await advance(other, roles, last);
    assert.deepEqual([roles.trainers.length, roles.trainers[0]!.isClosed], [2, true]);
    const recovery = await roles.policyTrainer.bringTo(test.run, versions[5]!.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 4, replayedSteps: 1, damaged: [] });
    assert.deepEqual([roles.trainers.length, roles.trainers[1]!.isClosed], [3, true]);
    last = await advance(other, openRoles(), last);
    const back = await roles.policyTrainer.bringTo(other.run, last.state.policy);
    assert.deepEqual([back!.replayedSteps, back!.differs, roles.trainers.length], [0, null, 4]);
  });

  test('a trainer of another kind goes on from a checkpoint’s weights as a version of its own, without its moments', async (t) => {
    const { test, versions } = await fiveSteps(t);
    class Other extends ChainTrainer {
      override async open(folder: string) {
        return { digest: own((await super.open(folder)).digest) };
      }
      override async digest() {
        return own(await super.digest());
      }
      override async restoreOptimizer(state: Uint8Array | null) {
        if (state !== null) throw new RatchetError('CheckpointDamaged', 'it cannot read these moments');
        await super.restoreOptimizer(state);
      }
    }
    const own = (digest: string): string => digest.split('').reverse().join('');
    const settings = await specOf(test.run);
    const torch = { kind: 'torch', program: null, ranks: 1, dtype: 'float32' } as const;
    const spec = await putJson(storeOf(test.run), 'specs/other.json', { ...settings, trainer: torch });
    const { policyTrainer, trainers } = openRoles(undefined, { makeTrainer: () => new Other() });
    const { policy } = versions[4]!.state;
    const recovery = await policyTrainer.bringTo({ ...test.run, spec }, policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps, recovery!.damaged], [4, 0, []]);
    const differs = { step: 4, digest: own(policy.digest), isSameEngine: false, isOfOtherTrainer: true };
    assert.deepEqual(recovery!.differs, differs);
    assert.equal(trainers[0]!.moments, 'fresh');
    const said = recoveryLines(5, recovery!, 0, true).map(({ text: line }) => line);
    assert.match(said[0]!, /^another trainer made version 4: its weights are trained on, and the optimizer begins anew\. The run continues from them as a version of its own/); // prettier-ignore
    const engines = { before: 'onnx 1.28', now: 'torch 2.15' };
    const warnings = recoveryLines(5, { ...recovery!, engines }, 0, true);
    assert.equal(warnings.length, 1, 'what trained before and what trains now is said in the same line');
    assert.match(warnings[0]!.text, /^another trainer made version 4 \(onnx 1\.28; now torch 2\.15\): its weights/);
    assert.equal(warnings[0]!.values['engine_before'], 'onnx 1.28');
    await assert.rejects(openRoles(undefined, { makeTrainer: () => new Other() }).policyTrainer.bringTo(test.run, policy), /cannot read these moments|other weights/); // prettier-ignore
  });

  test('an older version than it holds is restored, never reached by training on', async (t) => {
    const { test, roles, versions } = await fiveSteps(t);
    const recovery = await roles.policyTrainer.bringTo(test.run, versions[3]!.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [2, 1]);
  });

  test('a trainer that fails is forgotten: the next attempt restores and gives the same weights', async (t) => {
    const { test, roles, versions } = await fiveSteps(t);
    const planned = await planNext(test, roles, versions[5]!);
    roles.trainers[0]!.failAt = roles.trainers[0]!.trained.length + 1;
    await assert.rejects(act(roles.trainStep, { run: test.run, plan: planned.plan }), /the trainer died/);
    assert(roles.trainers[0]!.isClosed);
    const retried = await act(roles.trainStep, { run: test.run, plan: planned.plan });
    assert.deepEqual(placeOf(retried.recovery), { restoredFrom: 4, replayedSteps: 1, damaged: [] });
    const undisturbed = await fiveSteps(t);
    const same = await advance(undisturbed.test, undisturbed.roles, undisturbed.versions[5]!);
    assert.equal(retried.policy!.digest, same.state.policy.digest);
  });

  for (const part of ['weights', 'optimizer', 'manifest'] as const) {
    test(`a checkpoint with a flipped bit in its ${part} is passed over and named`, async (t) => {
      const { test, versions } = await fiveSteps(t);
      const key = {
        weights: `${layout.weights('main', 4)}model.safetensors`,
        optimizer: `${layout.checkpoint('main', 4)}optimizer.safetensors`,
        manifest: `${layout.checkpoint('main', 4)}manifest.json`,
      }[part];
      await damage(test, key);
      const { policyTrainer, trainers } = openRoles();
      const recovery = await policyTrainer.bringTo(test.run, versions[5]!.state.policy);
      assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps, recovery!.damaged.length], [2, 3, 1]);
      assert(recovery!.damaged[0]!.startsWith('step 4: '), recovery!.damaged[0]);
      assert(recovery!.damaged[0]!.includes(key), recovery!.damaged[0]);
      assert.deepEqual(trainers[0]!.trained, ['step 3', 'step 4', 'step 5']);
    });

    test(`whichever bit of the ${part} is flipped, no other weights come of it`, async (t) => {
      const { test, versions } = await fiveSteps(t);
      const key = {
        weights: `${layout.weights('main', 4)}model.safetensors`,
        optimizer: `${layout.checkpoint('main', 4)}optimizer.safetensors`,
        manifest: `${layout.checkpoint('main', 4)}manifest.json`,
      }[part];
      const whole = (await test.store.read(key))!;
      for (let at = 0; at < whole.length; at += part === 'manifest' ? 5 : 43) {
        const spoiled = Buffer.from(whole);
        spoiled[at]! ^= 1 << (at % 8);
        await writeFile(path.join(test.folder, key), spoiled);
        const { policyTrainer, trainers } = openRoles();
        await policyTrainer.bringTo(test.run, versions[5]!.state.policy);
        assert.equal(
          trainers.at(-1)!.weights,
          text(await test.store.read(`${layout.weights('main', 5)}model.safetensors`)),
        );
      }
    });
  }

  test('with every checkpoint damaged it says so, naming each, and what to do', async (t) => {
    const { test, versions } = await fiveSteps(t);
    for (const step of [0, 2, 4]) await damage(test, `${layout.weights('main', step)}model.safetensors`);
    await assert.rejects(
      openRoles().policyTrainer.bringTo(test.run, versions[5]!.state.policy),
      hasCode(
        'CheckpointDamaged',
        'step 0: ',
        'step 2: ',
        'step 4: ',
        'weights/step_4/model.safetensors',
        'from a copy',
      ),
    );
  });

  test('a missing batch is named, when the checkpoint before it is all there is', async (t) => {
    const { test, versions } = await fiveSteps(t);
    const run = await copyOf(t, test);
    await rm(path.join(fileURLToPath(run.store), run.name, 'batches'), { recursive: true });
    await assert.rejects(
      openRoles().policyTrainer.bringTo(run, versions[5]!.state.policy),
      hasCode('CheckpointDamaged', 'batches/step_5'),
    );
    const recovery = await openRoles().policyTrainer.bringTo(run, versions[4]!.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [4, 0]);
  });

  test('a reference policy that was renewed is still there when batches before the renewal are trained again', async (t) => {
    const overrides = { 'checkpoints.interval': '2', 'checkpoints.keep_last': '3', max_off_policy_steps: '0' };
    const test = await makeRun(t, overrides);
    const renewing = { ...test, spec: { ...test.spec, kl: { ...test.spec.kl, refSyncSteps: 3 } } };
    const run = { ...test.run, spec: await putJson(test.store, 'specs/renewing.json', renewing.spec) };
    const versions = await steps({ ...renewing, run }, openRoles(), 8);
    for (const step of [6, 8]) await damage(test, `${layout.checkpoint('main', step)}optimizer.safetensors`);
    const recovery = await openRoles().policyTrainer.bringTo(run, versions[8]!.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [4, 4]);
  });
});

describe('a GPU worker that gets a run back', () => {
  /** Makes the next steps with the GPU worker of these roles. */
  async function goOn(test: TestRun, roles: Roles, from: Committed, count: number): Promise<Committed> {
    let last = from;
    for (let i = 0; i < count; i++) last = await advance(test, roles, last);
    return last;
  }

  const retention = (interval: number, keepLast: number) => ({
    'checkpoints.interval': String(interval),
    'checkpoints.keep_last': String(keepLast),
    max_off_policy_steps: '0',
  });

  test('restores the newest checkpoint when retention has removed the batches after the version that it holds', async (t) => {
    const test = await makeRun(t, retention(2, 1));
    const [ours, theirs] = [openRoles(), openRoles()];
    const left = await goOn(test, ours, await commitFirst(test, ours), 3);
    const handed = await goOn(test, theirs, left, 8);
    assert.equal(await test.store.read((await requireCommit(test.run, 4)).commit.plan!.key), null, 'it is removed');
    const recovery = await ours.policyTrainer.bringTo(test.run, handed.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 10, replayedSteps: 1, damaged: [] });
    const last = await goOn(test, ours, handed, 3);
    const undisturbed = await makeRun(t, retention(2, 1));
    const same = openRoles();
    const expected = await goOn(undisturbed, same, await commitFirst(undisturbed, same), 14);
    assert.equal(last.state.policy.digest, expected.state.policy.digest);
  });

  test('repeats no more batches than lie between two checkpoints, even from the version that it holds', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const [ours, theirs] = [openRoles(), openRoles()];
    const handed = await goOn(test, theirs, await goOn(test, ours, await commitFirst(test, ours), 3), 11);
    const recovery = await ours.policyTrainer.bringTo(test.run, handed.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 12, replayedSteps: 2, damaged: [] });
  });

  test('continues from the held version if no checkpoint is nearer', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const [ours, theirs] = [openRoles(), openRoles()];
    const handed = await goOn(test, theirs, await goOn(test, ours, await commitFirst(test, ours), 4), 3);
    const recovery = await ours.policyTrainer.bringTo(test.run, handed.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: null, replayedSteps: 3, damaged: [] });
    assert.deepEqual(ours.trainers.length, 1);
  });

  test('continues from the held version if the nearer checkpoint is damaged', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const [ours, theirs] = [openRoles(), openRoles()];
    const handed = await goOn(test, theirs, await goOn(test, ours, await commitFirst(test, ours), 5), 4);
    await damage(test, `${layout.weights('main', 8)}model.safetensors`);
    const recovery = await ours.policyTrainer.bringTo(test.run, handed.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps, recovery!.differs], [null, 4, null]);
    assert.match(recovery!.damaged.join(), /^step 8: /);
  });

  test('restores a checkpoint if a batch it would continue with is damaged, and discards what it trained so far', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const [ours, theirs] = [openRoles(), openRoles()];
    const handed = await goOn(test, theirs, await goOn(test, ours, await commitFirst(test, ours), 5), 2);
    const { plan } = (await requireCommit(test.run, 7)).commit;
    const [part] = await partsOfPlan(test.run, await readJson<StepPlan>(test.run, plan!));
    const whole = (await test.store.read(part!.key))!;
    await damage(test, part!.key);
    const trained = () => ours.trainers.flatMap((trainer) => trainer.trained.slice(-3));
    await assert.rejects(
      ours.policyTrainer.bringTo(test.run, handed.state.policy),
      hasCode('CheckpointDamaged', 'step 5, held by this GPU worker: ', 'step 4: ', part!.key),
    );
    assert.ok(trained().includes('step 6'), 'it stopped half-way');
    await test.store.put(part!.key, whole);
    const recovery = await ours.policyTrainer.bringTo(test.run, handed.state.policy);
    assert.equal(recovery!.differs, null);
    assert.equal(
      ours.trainers.at(-1)!.weights,
      text(await test.store.read(`${layout.weights('main', 7)}model.safetensors`)),
    );
  });

  test('starts no batch if one of those it needs is missing', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const [ours, theirs] = [openRoles(), openRoles()];
    const handed = await goOn(test, theirs, await goOn(test, ours, await commitFirst(test, ours), 5), 2);
    const { plan } = (await requireCommit(test.run, 7)).commit;
    const [part] = await partsOfPlan(test.run, await readJson<StepPlan>(test.run, plan!));
    await test.store.removeAll(part!.key);
    const before = ours.trainers[0]!.trained.length;
    await assert.rejects(
      ours.policyTrainer.bringTo(test.run, handed.state.policy),
      hasCode('CheckpointDamaged', part!.key),
    );
    assert.equal(ours.trainers[0]!.trained[before], 'step 5', 'from checkpoint 4, and not step 6 from what it held');
  });

  test("in another lineage restores that lineage's start, even if it holds a later step of the earlier one", async (t) => {
    const test = await makeRun(t, retention(2, 5));
    const [ours, theirs] = [openRoles(), openRoles()];
    const versions = [await commitFirst(test, ours)];
    for (let i = 0; i < 5; i++) versions.push(await advance(test, ours, versions.at(-1)!));
    const { lineage, head } = await beginLineage({ run: test.run, step: 3, request: 'back' });
    const run = { ...test.run, lineage };
    const again = { ...test, run };
    const first = { state: { ...head.commit.state, overrides: { learningRate: 0.5 } }, parent: head.sha256 };
    const handed = await goOn(again, theirs, first, 2);
    assert.notEqual(handed.state.policy.digest, versions[5]!.state.policy.digest);
    const recovery = await ours.policyTrainer.bringTo(run, handed.state.policy);
    assert.deepEqual([recovery!.differs, recovery!.restoredFrom === null], [null, false]);
    assert.equal(
      ours.trainers.at(-1)!.weights,
      text(await test.store.read(`${handed.state.policy.weights}model.safetensors`)),
    );
  });

  test('repeats steps that changed no weights, because their moments differ', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const still = { makeTrainer: () => new StillTrainer() };
    const [ours, theirs] = [openRoles(undefined, still), openRoles(undefined, still)];
    const left = await goOn(test, ours, await commitFirst(test, ours), 5);
    const handed = await goOn(test, theirs, left, 2);
    assert.equal(handed.state.policy.digest, left.state.policy.digest);
    const recovery = await ours.policyTrainer.bringTo(test.run, handed.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: null, replayedSteps: 2, damaged: [] });
    assert.equal(ours.trainers.at(-1)!.moments, theirs.trainers.at(-1)!.moments);
  });

  for (const [what, changed] of Object.entries({
    'settings of its trainer': { 'trainer.threads': '3' },
    adapters: { 'lora.r': '4', 'lora.alpha': '8' },
  })) {
    test(`opens another trainer when the run has other ${what} now, even if it holds the same weights`, async (t) => {
      const test = await makeRun(t);
      const roles = openRoles();
      const last = await goOn(test, roles, await commitFirst(test, roles), 2);
      const { trainer, lora } = (await makeRun(t, changed)).spec;
      const spec = await putJson(test.store, 'specs/other.json', { ...test.spec, trainer, lora });
      const recovery = await roles.policyTrainer.bringTo({ ...test.run, spec }, last.state.policy);
      assert.deepEqual([recovery!.restoredFrom, roles.trainers.length, roles.trainers[0]!.isClosed], [2, 2, true]);
    });
  }

  test('refuses a reference policy that was damaged after it was used', async (t) => {
    const test = await makeRun(t, retention(4, 5));
    const roles = openRoles();
    const last = await goOn(test, roles, await commitFirst(test, roles), 2);
    const { plan } = await planNext(test, roles, last);
    await damage(test, `${layout.weights('main', 0)}model.safetensors`);
    await assert.rejects(
      act(roles.trainStep, { run: test.run, plan }),
      hasCode('CheckpointDamaged', 'weights/step_0/model.safetensors'),
    );
  });
});

/** A learning rate of 0 after the first step keeps the weights but changes the moments. */
class StillTrainer extends ChainTrainer {
  override async trainStep(input: Parameters<ChainTrainer['trainStep']>[0]) {
    const { weights } = this;
    const outcome = await super.trainStep(input);
    if (input.plan.step > 1) this.weights = weights;
    return { ...outcome, digest: await this.digest() };
  }
}

describe('a train step', () => {
  test('a damaged reference policy is refused by name, before anything is trained with it', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const { plan } = await planNext(test, roles, await advance(test, roles, await commitFirst(test, roles)));
    await damage(test, `${layout.weights('main', 0)}model.safetensors`);
    const next = openRoles();
    await next.policyTrainer.startFrom(test.run, await test.store.localFolder(layout.weights('main', 1)), {
      optimizer: null,
      isWarmUp: false,
    });
    await assert.rejects(
      act(next.trainStep, { run: test.run, plan }),
      hasCode('CheckpointDamaged', 'weights/step_0/model.safetensors'),
    );
    assert.deepEqual(next.trainers[0]!.trained, []);
  });

  test('asked twice it is done once', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const { plan } = await planNext(test, roles, await commitFirst(test, roles));
    const once = await act(roles.trainStep, { run: test.run, plan });
    const twice = await act(roles.trainStep, { run: test.run, plan });
    assert.deepEqual(twice, once);
    assert.deepEqual(roles.trainers[0]!.trained, ['step 1']);
  });

  test('asked again in another process it gives the same version', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const { plan } = await planNext(test, roles, await commitFirst(test, roles));
    const once = await act(roles.trainStep, { run: test.run, plan });
    const again = await act(openRoles().trainStep, { run: test.run, plan });
    assert.deepEqual(again.policy, once.policy);
  });

  test('a step that ran out of memory asks for half the rows at once; with those it is told as such, with what may be done about it', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles(undefined, {
      failure: () => new Error('Failed to allocate memory for requested buffer of size 1073741824'),
    });
    const { plan, packed, step } = await planNext(test, roles, await commitFirst(test, roles));
    const { halvedTo, reason, policy } = await act(roles.trainStep, { run: test.run, plan });
    assert.equal(policy, null);
    assert.match(reason ?? '', /size 1073741824/);
    const { from, reference, klBeta } = await readJson<StepPlan>(test.run, plan);
    const again = { run: test.run, step, attempt: 2, from, reference, klBeta, overrides: {}, packed, halvedTo };
    const halved = await roles.planStep(again);
    const { microBatchSize, packed: rows } = await readJson<StepPlan>(test.run, halved.plan);
    assert.equal(microBatchSize, Math.floor(rows.count! / 2));
    await assert.rejects(
      act(roles.trainStep, { run: test.run, plan: halved.plan }),
      hasCode('OutOfMemory', 'size 1073741824', 'micro_batch_size'),
    );
  });

  test('a trainer process that is killed does the same step again; killed of it once more, it has half the rows', async (t) => {
    const test = await makeRun(t);
    let kills = 1;
    const killed = new RatchetError('EngineDied', 'The trainer process 17 is gone: it was killed by SIGKILL.');
    const roles = openRoles(undefined, { failure: () => (kills-- > 0 ? killed : null) });
    const { plan } = await planNext(test, roles, await commitFirst(test, roles));
    const attempt = () => act(roles.trainStep, { run: test.run, plan });
    await assert.rejects(attempt(), hasCode('OutOfMemory', 'killed by SIGKILL', 'micro_batch_size'));
    const { policy } = await attempt();
    assert.ok(policy, 'the plan as it was');

    kills = 2;
    const next = await makeRun(t);
    const others = openRoles(undefined, { failure: () => (kills-- > 0 ? killed : null) });
    const planned = await planNext(next, others, await commitFirst(next, others));
    const again = () => act(others.trainStep, { run: next.run, plan: planned.plan });
    await assert.rejects(again(), { code: 'OutOfMemory' });
    assert.ok(((await again()).halvedTo ?? 0) > 0);
  });

  test('a trainer process that dies of one batch again and again is given up, by name and not for ever', async (t) => {
    const test = await makeRun(t);
    let isDying = true;
    const died = new RatchetError('EngineDied', 'The trainer process 17 is gone: it exited with code 134.');
    const roles = openRoles(undefined, { failure: () => (isDying ? died : null) });
    const { plan } = await planNext(test, roles, await commitFirst(test, roles));
    const attempt = () => act(roles.trainStep, { run: test.run, plan });
    for (let i = 1; i < engineFailuresMax; i++)
      await assert.rejects(attempt(), { code: 'EngineDied', isRetryable: true });
    await assert.rejects(
      attempt(),
      hasCode('TrainerFailing', 'step 1', `${engineFailuresMax} times in a row`, 'code 134'),
    );
    await assert.rejects(attempt(), { code: 'EngineDied' }, 'asked again, it has its chances again');
    isDying = false;
    assert.ok((await attempt()).policy);
  });

  test('a refused batch makes no version, and the policy stays as it was', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const first = await commitFirst(test, roles);
    await roles.policyTrainer.bringTo(test.run, first.state.policy);
    roles.trainers[0]!.refuse = true;
    const { plan } = await planNext(test, roles, first);
    const refused = await act(roles.trainStep, { run: test.run, plan });
    assert.deepEqual([refused.policy, refused.optimizer, refused.reason], [null, null, 'loss is NaN']);
    assert.equal(await test.store.read(`${layout.weights('main', 1)}model.safetensors`), null);
    assert.equal(await roles.policyTrainer.bringTo(test.run, first.state.policy), null);
  });

  test('scores of tokens that the store refuses leave no trainer at weights that it takes for others', async (t) => {
    const undisturbed = await fiveSteps(t);
    const test = await makeRun(t);
    const roles = openRoles(undefined, { makeTrainer: () => new TellingTrainer() });
    const first = await commitFirst(test, roles);
    const { plan } = await planNext(test, roles, first);
    const inTheWay = path.join(test.folder, 'tokens');
    await writeFile(inTheWay, 'no folder');
    await assert.rejects(act(roles.trainStep, { run: test.run, plan }));
    await rm(inTheWay);
    const { policy } = await act(roles.trainStep, { run: test.run, plan });
    assert.equal(policy!.digest, undisturbed.versions[1]!.state.policy.digest);
  });

  test('two runs of one config on one worker each store their own version', async (t) => {
    const one = await makeRun(t);
    const two = await runIn(path.dirname(one.folder), {}, 'words-2');
    const roles = openRoles();
    const firsts = [await commitFirst(one, roles), await commitFirst(two, roles)];
    const plans = [await planNext(one, roles, firsts[0]!), await planNext(two, roles, firsts[1]!)];
    const results: TrainedBatch[] = [];
    for (const [i, { run }] of [one, two].entries())
      results.push(await act(roles.trainStep, { run, plan: plans[i]!.plan }));
    for (const [i, { run, store }] of [one, two].entries()) {
      const { policy, optimizer } = results[i]!;
      assert.equal(await act(roles.publishVersion, { run, policy: policy!, optimizer }), true);
      await store.get(policy!.file);
    }
  });
});

/**
 * Like vLLM with top_p: reports the log probability of each token under the sampling distribution, and none of the
 * policy's.
 */
class TellsTheSamplers extends WordsInference {
  override async sample(request: SampleRequest) {
    const { logprobs, ...sample } = await super.sample(request);
    return { ...sample, logprobs: null as never, samplingLogprobs: logprobs.map((logprob) => logprob / 2) };
  }
}

/** Reports its values for each token. */
class TellingTrainer extends ChainTrainer {
  override async trainStep(input: Parameters<ChainTrainer['trainStep']>[0]) {
    const outcome = await super.trainStep(input);
    const logprobs = input.batch.rows.map(({ tokens }) => new Float32Array(tokens).fill(-1));
    return { ...outcome, scores: { logprobs, entropies: null } };
  }
}

/** Records batches that are trained, and weights that were scored with. */
class ScoringTrainer extends ChainTrainer {
  readonly batches: TrainSample[][] = [];
  readonly scoredAt: string[] = [];

  override async trainStep(input: Parameters<ChainTrainer['trainStep']>[0]) {
    const { batch } = input;
    this.batches.push([...(await batch.read([...batch.rows.keys()]))]);
    return super.trainStep(input);
  }

  logprobs(rows: readonly PackedRow[], temperature: number): Promise<Float32Array[]> {
    this.scoredAt.push(`${this.weights} at ${temperature}`);
    return Promise.resolve(rows.map(({ tokenIds }) => Float32Array.from(tokenIds, (id) => -id / 8)));
  }
}

describe('log probabilities that no server told', () => {
  test('are computed from the weights that the step begins from, and trained again as they were', async (t) => {
    const test = await makeRun(t);
    const made: ScoringTrainer[] = [];
    const makeTrainer = () => made[made.push(new ScoringTrainer()) - 1]!;
    const roles = openRoles(new TellsTheSamplers(), { makeTrainer });
    const first = await commitFirst(test, roles);
    const second = await advance(test, roles, first);
    assert.equal(made[0]!.scoredAt[0], `${first.state.policy.digest} at ${test.spec.sampling.temperature}`);
    const [row] = made[0]!.batches[0]!;
    const { tokenIds, lossMask, behaviorLogprobs, samplingLogprobs } = row!;
    assert.deepEqual(
      behaviorLogprobs,
      tokenIds.map((id, i) => (lossMask[i] === 1 ? -id / 8 : 0)),
    );
    assert.deepEqual(
      samplingLogprobs,
      tokenIds.map((id, i) => (lossMask[i] === 1 ? -id / 20 : 0)),
    );
    const other = openRoles(new TellsTheSamplers(), { makeTrainer });
    const recovery = await other.policyTrainer.bringTo(test.run, second.state.policy);
    assert.equal(recovery?.differs, null);
    assert.deepEqual(made[1]!.batches[0], made[0]!.batches[0]);
  });

  test('are refused in a line by a trainer that cannot compute them', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles(new TellsTheSamplers());
    const { plan } = await planNext(test, roles, await commitFirst(test, roles));
    await assert.rejects(act(roles.trainStep, { run: test.run, plan }), {
      code: 'Unsupported',
      message: /cannot compute the policy's log probabilities, which the inference server did not tell/,
    });
  });
});
