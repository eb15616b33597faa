import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import fc from 'fast-check';
import { readHead, readJson, requireCommit } from '../../runs/run-access.ts';
import { TrainerDrain } from '../../activities/around/trainer-drain.ts';
import { createBroadcastWeights } from '../../activities/broadcast-weights.ts';
import type { Inference } from '../../backends/inference/index.ts';
import { keptCheckpoints } from '../../activities/save-checkpoint.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { putJson } from '../../store/objects.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import { runStateBytesMax } from '../../core/limits.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { hasCode } from '../store/store.contract.ts';
import {
  act,
  advance,
  type Committed,
  commitFirst,
  damage,
  datasets,
  makeRun,
  openRoles,
  placeOf,
  planNext,
  sampleRound,
  type Roles,
  type TestRun,
} from './runs.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';

async function started(t: TestContext, overrides: Readonly<Record<string, string>> = {}) {
  const test = await makeRun(t, overrides);
  const roles = openRoles();
  return { test, roles, first: await commitFirst(test, roles) };
}

async function advanceTo(test: TestRun, roles: Roles, from: Committed, step: number): Promise<Committed> {
  let last = from;
  while (last.state.step < step) last = await advance(test, roles, last);
  return last;
}

describe('packing a batch', () => {
  test('it is addressed by its content: packed twice it is the same, other groups take another place', async (t) => {
    const { test, roles, first } = await started(t);
    const { run } = test;
    const { round, scored } = await sampleRound(test, roles, {
      step: 1,
      policy: first.state.policy,
      curriculum: first.state.curriculum,
    });
    const source = (ordinals: string) => [{ scored, policyStep: round.policyStep, ordinals }];
    const once = await roles.packBatch({ run, step: 1, trained: source('1-2'), scored: [scored] });
    assert.deepEqual(await roles.packBatch({ run, step: 1, trained: source('1-2'), scored: [scored] }), once);
    const other = await roles.packBatch({ run, step: 1, trained: source('2'), scored: [scored] });
    assert.notEqual(other.packed.key, once.packed.key);
    assert.equal(once.rows, 8);
    const batch = await openBatch(run, { packed: once.packed });
    assert.equal((await batch.read([...batch.rows.keys()])).length, 8);
  });
});

describe('leasing with a broadcast', () => {
  test('it is the round that a lease of its own would give, and twice is once', async (t) => {
    const { test, roles, first } = await started(t);
    const { policy, curriculum } = first.state;
    const lease = { run: test.run, step: 1, count: 2, datasets, policy, curriculum };
    const servers = { bringTo: () => Promise.resolve() } as unknown as Inference;
    const broadcast = createBroadcastWeights(
      () => servers,
      (input) => roles.leaseGroups(input),
    );
    const once = await act(broadcast, { run: test.run, policy, lease });
    const again = await act(broadcast, { run: test.run, policy, lease });
    assert.equal(once.leased?.round?.last, 2);
    assert.deepEqual([again.leased, await roles.leaseGroups(lease)], [once.leased, once.leased]);
    assert.equal((await act(broadcast, { run: test.run, policy })).leased, undefined, 'nobody asked for one');
  });
});

describe('planning a step', () => {
  test('the first plan for a batch stands, whatever the settings have become since', async (t) => {
    const { test, roles, first } = await started(t);
    const { plan, packed, learningRate } = await planNext(test, roles, first);
    const { policy, reference } = first.state;
    const again = await roles.planStep({
      run: test.run,
      step: 1,
      attempt: 1,
      from: policy,
      reference,
      klBeta: 0.5,
      overrides: { learningRate: 1 },
      packed,
    });
    assert.deepEqual([again.plan, again.learningRate], [plan, learningRate]);
  });

  test('other groups for the same step are planned as themselves: no plan stands in for another batch', async (t) => {
    const { test, roles, first } = await started(t);
    const { plan, packed } = await planNext(test, roles, first);
    const { policy, reference } = first.state;
    const round = await sampleRound(test, roles, { step: 1, policy, curriculum: first.state.curriculum });
    const other = await roles.packBatch({
      run: test.run,
      step: 1,
      trained: [{ scored: round.scored, policyStep: 0, ordinals: '2' }],
      scored: [round.scored],
    });
    const planned = await roles.planStep({
      run: test.run,
      step: 1,
      attempt: 1,
      from: policy,
      reference,
      klBeta: 0,
      overrides: {},
      packed: other.packed,
    });
    assert.notEqual(planned.plan.key, plan.key);
    assert.equal((await readJson<StepPlan>(test.run, planned.plan)).packed.sha256, other.packed.sha256);
    assert.equal((await readJson<StepPlan>(test.run, plan)).packed.sha256, packed.sha256);
  });

  test('a snapshot is asked for at every interval, at the last step and where the run is told to stop', async (t) => {
    const { test, roles, first } = await started(t, { 'checkpoints.interval': '5', max_steps: '12' });
    const { packed } = await planNext(test, roles, first);
    const { policy, reference } = first.state;
    const snapshots = [];
    for (let step = 1; step <= 12; step++) {
      const planned = await roles.planStep({
        run: test.run,
        step,
        attempt: 1,
        from: policy,
        reference,
        klBeta: 0,
        overrides: { stopAfter: 7 },
        packed,
      });
      if (planned.snapshot) snapshots.push(step);
    }
    assert.deepEqual(snapshots, [5, 7, 10, 12]);
  });

  test('a GPU worker that is to end makes a checkpoint of its step: the next one trains nothing again', async (t) => {
    const test = await makeRun(t, { 'checkpoints.interval': '5', max_steps: '12' });
    const drain = new TrainerDrain();
    const roles = openRoles(undefined, { drain });
    const two = await advanceTo(test, roles, await commitFirst(test, roles), 2);
    await drain.drain(0);
    const three = await advance(test, roles, two);
    assert((await requireCommit(test.run, 3)).commit.optimizer, 'the version has its optimizer');
    const recovery = await openRoles().policyTrainer.bringTo(test.run, three.state.policy);
    assert.deepEqual(placeOf(recovery), { restoredFrom: 3, replayedSteps: 0, damaged: [] });
  });
});

describe('committing a step', () => {
  /** Step 1 as it is about to be committed. */
  async function ready(t: TestContext) {
    const { test, roles, first } = await started(t);
    const { plan, step, ordinals } = await planNext(test, roles, first);
    const { policy, optimizer } = await act(roles.trainStep, { run: test.run, plan });
    const state = { ...first.state, step, policy: policy! };
    const outcomes = { step, issued: ordinals, ended: { trained: ordinals }, pending: '' };
    return {
      test,
      roles,
      first,
      commit: { run: test.run, parent: first.parent, plan, optimizer, outcomes, metrics: { a: 1 }, state },
    };
  }

  test('committed twice it is one commit: the second adopts the first', async (t) => {
    const { test, roles, commit } = await ready(t);
    const once = await roles.commitStep(commit);
    const again = await roles.commitStep({ ...commit, metrics: { a: 2 } });
    assert.deepEqual([once.adopted, again.adopted], [false, true]);
    assert.equal(again.sha256, once.sha256);
    const head = (await readHead(test.run))!;
    assert.deepEqual([head.sha256, head.commit.metrics['a'], head.commit.codeVersion], [once.sha256, 1, 'test']);
  });

  for (const what of ['policy', 'plan', 'parent'] as const) {
    test(`a commit with another ${what} than the stored one is refused and changes nothing`, async (t) => {
      const { test, roles, commit } = await ready(t);
      const { sha256 } = await roles.commitStep(commit);
      const other = {
        policy: { ...commit, state: { ...commit.state, policy: { ...commit.state.policy, digest: 'f'.repeat(64) } } },
        plan: {
          ...commit,
          plan: await putJson(
            test.store,
            'other-plan.json',
            await readJson<StepPlan>(test.run, commit.plan).then((plan) => ({ ...plan, attempt: 2 })),
          ),
        },
        parent: { ...commit, parent: '0'.repeat(64) },
      }[what];
      await assert.rejects(roles.commitStep(other), hasCode('CommitConflict', 'step_1.json', 'ratchet-rl train'));
      assert.equal((await readHead(test.run))!.sha256, sha256);
    });
  }

  test('a step of a lineage that a rewind has left is refused before anything is written', async (t) => {
    const { test, roles, commit } = await ready(t);
    await roles.beginLineage({ run: test.run, step: 0, request: 'wf/1' });
    await assert.rejects(roles.commitStep(commit), hasCode('CommitConflict', 'has begun since', 'ratchet-rl rewind'));
    assert.equal(await test.store.read(layout.commit('main', 1)), null);
  });

  test('a run state that outgrew its limit is refused before anything is written', async (t) => {
    const { test, roles, commit } = await ready(t);
    const surplus = Array.from({ length: 20_000 }, () => ({ scored: commit.plan, policyStep: 0, ordinals: '1' }));
    await assert.rejects(
      roles.commitStep({ ...commit, state: { ...commit.state, surplus } }),
      hasCode('Unsupported', String(runStateBytesMax)),
    );
    assert.equal((await readHead(test.run))!.commit.step, 0);
  });

  test('a broken chain of commits is refused, naming the step', async (t) => {
    const { test, roles, commit } = await ready(t);
    await roles.commitStep({ ...commit, parent: '0'.repeat(64) });
    await assert.rejects(
      readHead(test.run),
      hasCode('CheckpointDamaged', 'step_1.json', 'step 0', 'ratchet-rl fsck words'),
    );
  });

  test('a commit that is missing or spoiled is refused, naming its file', async (t) => {
    const { test, roles, commit } = await ready(t);
    await roles.commitStep(commit);
    const key = layout.commit('main', 1);
    await writeFile(path.join(test.folder, key), '{"half');
    await assert.rejects(readHead(test.run), hasCode('CheckpointDamaged', key));
    const whole = await test.store.read(layout.commit('main', 0));
    await test.store.removeAll(layout.commit('main', 0));
    await test.store.removeAll(key);
    assert.equal(await readHead(test.run), null);
    await test.store.put(layout.commit('main', 0), whole!);
    await roles.commitStep(commit);
    await test.store.removeAll(layout.commit('main', 0));
    await assert.rejects(readHead(test.run), hasCode('CheckpointDamaged', layout.commit('main', 0)));
  });

  test('the ledger of the commits is sound, and a hole in it is found', async (t) => {
    const { test, roles, first } = await started(t);
    const last = await advanceTo(test, roles, first, 2);
    const sound = await act(roles.auditRun, { run: test.run });
    assert.deepEqual([sound.isSound, sound.issued, sound.counts, sound.pending], [true, 4, { trained: 4 }, 0]);
    const outcomes = { step: 3, issued: '5-6', ended: { trained: '5' }, pending: '' };
    const found = (await readHead(test.run))!.commit;
    await roles.commitStep({
      run: test.run,
      parent: last.parent,
      plan: found.plan,
      optimizer: null,
      outcomes,
      metrics: {},
      state: { ...last.state, step: 3 },
    });
    const { isSound, holes } = await act(roles.auditRun, { run: test.run });
    assert.deepEqual([isSound, holes], [false, [6]]);
  });
});

describe('the chain of commits', () => {
  test('an older commit that was changed is found by the audit, though its groups still add up', async (t) => {
    const { test, roles, first } = await started(t);
    await advanceTo(test, roles, first, 4);
    const key = layout.commit('main', 2);
    const text = Buffer.from((await test.store.read(key))!).toString();
    await test.store.put(key, Buffer.from(text.replace('"codeVersion":"', '"codeVersion":"x')));
    const { isSound, holes, duplicates, brokenLinks } = await act(roles.auditRun, { run: test.run });
    assert.deepEqual([isSound, holes, duplicates, brokenLinks], [false, [], [], [3]]);
  });
});

describe('sealing and keeping checkpoints', () => {
  const someSteps = fc
    .uniqueArray(fc.integer({ min: 1, max: 60 }), { maxLength: 20 })
    .map((steps) => [0, ...steps].sort((a, b) => a - b));
  const spec = fc.record({
    interval: fc.constant(1),
    keepLast: fc.integer({ min: 1, max: 5 }),
    keepInterval: fc.option(fc.integer({ min: 1, max: 20 })),
  });

  test('v0, the newest few and every multiple are kept, in order, and nothing else', () =>
    fc.assert(
      fc.property(someSteps, spec, (sealed, options) => {
        const kept = keptCheckpoints(sealed, options);
        const { keepLast, keepInterval } = options;
        for (const [i, step] of sealed.entries()) {
          const isNewest = i >= sealed.length - keepLast;
          const isMultiple = keepInterval !== null && step % keepInterval === 0;
          assert.equal(kept.includes(step), step === 0 || isNewest || isMultiple, `step ${step} of ${sealed.join()}`);
        }
        assert.deepEqual(
          kept,
          kept.toSorted((a, b) => a - b),
        );
        assert.deepEqual(keptCheckpoints(kept, options), kept);
      }),
    ));

  test('sealed one after another, the store holds what would be kept of them all', () =>
    fc.assert(
      fc.property(someSteps, spec, (steps, options) => {
        let kept: number[] = [];
        for (const step of steps) kept = keptCheckpoints([...kept, step], options);
        assert.deepEqual(kept, keptCheckpoints(steps, options));
      }),
    ));

  const stepsIn = async (test: TestRun, prefix: string) =>
    [...new Set((await test.store.list(prefix)).map(stepOf))].filter((step) => step !== null).sort((a, b) => a - b);

  test('what no checkpoint needs is removed: older checkpoints, weights and batches', async (t) => {
    const { test, roles, first } = await started(t, { max_off_policy_steps: '1' });
    await advanceTo(test, roles, first, 9);
    assert.deepEqual(await stepsIn(test, 'checkpoints/'), [0, 6, 8]);
    assert.deepEqual(await stepsIn(test, 'batches/'), [7, 8, 9]);
    const weights = await stepsIn(test, 'weights/');
    for (const step of [0, 6, 8, 9]) assert(weights.includes(step), `weights of v${step}`);
    for (const step of [1, 2, 3, 4]) assert(!weights.includes(step), `weights of v${step}`);
  });

  test('the weights of versions that something still refers to stay', async (t) => {
    const { test, roles, first } = await started(t, { max_off_policy_steps: '1' });
    const third = await advanceTo(test, roles, first, 3);
    let last = third;
    while (last.state.step < 10) last = await advance(test, roles, last, { pinned: [3] });
    assert((await stepsIn(test, 'weights/')).includes(3));
    await test.store.get(third.state.policy.file);
  });

  test('sealed twice, it is the same checkpoint', async (t) => {
    const { test, roles, first } = await started(t);
    await advanceTo(test, roles, first, 4);
    const manifest = await test.store.read(`${layout.checkpoint('main', 4)}manifest.json`);
    const { kept } = await act(roles.saveCheckpoint, { run: test.run, step: 4, pinned: [0] });
    assert.deepEqual(kept, [0, 2, 4]);
    assert.deepEqual(await test.store.read(`${layout.checkpoint('main', 4)}manifest.json`), manifest);
  });

  test('a checkpoint whose sealing was lost with its workflow is sealed by the next one, and kept as it should be', async (t) => {
    const { test, roles, first } = await started(t);
    await advanceTo(test, roles, first, 4);
    const manifest = `${layout.checkpoint('main', 4)}manifest.json`;
    const written = await test.store.read(manifest);
    await test.store.removeAll(manifest);
    await advanceTo(
      test,
      roles,
      { state: (await readHead(test.run))!.commit.state, parent: (await readHead(test.run))!.sha256 },
      6,
    );
    assert.deepEqual(await test.store.read(manifest), written);
    assert.deepEqual(await stepsIn(test, 'checkpoints/'), [0, 4, 6]);
  });

  test('a checkpoint of a step that was never committed is refused', async (t) => {
    const { test, roles } = await started(t);
    await assert.rejects(
      act(roles.saveCheckpoint, { run: test.run, step: 7, pinned: [] }),
      hasCode('CheckpointDamaged', 'step_7.json'),
    );
  });
});

describe('warming up', () => {
  const sft = { 'sft.steps': '120', 'sft.batch_size': '2', 'sft.learning_rate': '0.001' };

  test('a warm-up whose trainer is lost after every segment gives v0 the weights of an undisturbed one', async (t) => {
    const undisturbed = await started(t, sft);
    const disturbed = await makeRun(t, sft);
    let warm = await act(openRoles().warmUp, { run: disturbed.run, from: null });
    const steps = [warm.step];
    while (warm.step < 120) {
      warm = await act(openRoles().warmUp, { run: disturbed.run, from: warm });
      steps.push(warm.step);
    }
    assert.deepEqual(steps, [0, 50, 100, 120]);
    assert.equal(warm.policy.digest, undisturbed.first.state.policy.digest);
    assert.deepEqual([warm.policy.step, warm.policy.weights, warm.optimizer], [0, 'weights/step_0/', null]);
  });

  test('a segment that dies in its middle is trained again from its start; one that is stored is not', async (t) => {
    const { test, roles } = { test: await makeRun(t, sft), roles: openRoles() };
    const base = await act(roles.warmUp, { run: test.run, from: null });
    const first = await act(roles.warmUp, { run: test.run, from: base });
    assert.deepEqual(await act(roles.warmUp, { run: test.run, from: base }), first);
    assert.equal(roles.trainers[0]!.trained.length, 50);
    roles.trainers[0]!.failAt = 73;
    await assert.rejects(act(roles.warmUp, { run: test.run, from: first }), /the trainer died/);
    const second = await act(roles.warmUp, { run: test.run, from: first });
    assert.equal(roles.trainers[1]!.trained.length, 50);
    const other = await makeRun(t, sft);
    let warm = await act(roles.warmUp, { run: other.run, from: null });
    while (warm.step < 100) warm = await act(roles.warmUp, { run: other.run, from: warm });
    assert.equal(second.policy.digest, warm.policy.digest);
  });

  test('the first step after the warm-up begins with a fresh optimizer, in the same process or in another', async (t) => {
    const { test, roles, first } = await started(t, sft);
    const { plan } = await planNext(test, roles, first);
    const here = await act(roles.trainStep, { run: test.run, plan });
    const there = await act(openRoles().trainStep, { run: test.run, plan });
    assert.equal(here.policy!.digest, there.policy!.digest);
  });

  for (const part of ['model.safetensors', 'optimizer.state']) {
    test(`a ${part} of the warm-up that was damaged is refused by name`, async (t) => {
      const { test, roles } = { test: await makeRun(t, sft), roles: openRoles() };
      let warm = await act(roles.warmUp, { run: test.run, from: null });
      warm = await act(roles.warmUp, { run: test.run, from: warm });
      await damage(test, `${layout.warmUp(50)}${part}`);
      await assert.rejects(
        act(openRoles().warmUp, { run: test.run, from: warm }),
        hasCode('CheckpointDamaged', layout.warmUp(50)),
      );
    });
  }

  test('once a later checkpoint is sealed, nothing of the warm-up is left', async (t) => {
    const { test, roles, first } = await started(t, sft);
    assert((await test.store.list(layout.allWarmUps())).length > 0);
    await advanceTo(test, roles, first, 2);
    assert.deepEqual(await test.store.list(layout.allWarmUps()), []);
    await test.store.get(first.state.policy.file);
  });

  test('an environment that demonstrates nothing is refused with the setting to remove', async (t) => {
    const { test, roles } = { test: await makeRun(t, sft), roles: openRoles() };
    const environment = await openEnvironment(test.spec.environments[0]!);
    const whole = { ...environment };
    t.after(() => Object.assign(environment, whole));
    Object.assign(environment, { demonstrate: undefined });
    const base = await act(roles.warmUp, { run: test.run, from: null });
    await assert.rejects(
      act(roles.warmUp, { run: test.run, from: base }),
      hasCode('ConfigInvalid', 'reverse-text', 'remove [sft]'),
    );
  });
});
