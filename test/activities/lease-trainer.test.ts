import assert from 'node:assert/strict';
import { mkdir, readdir } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createDescribeTrainers } from '../../activities/find-trainers.ts';
import { createLeaseActivities } from '../../activities/index.ts';
import { createGiveBackTrainer, type TrainerLeased } from '../../activities/lease-trainer.ts';
import { readJson, requireCommit } from '../../runs/run-access.ts';
import { claimTrainer, nextTrainerEpoch } from '../../activities/trainer-claims.ts';
import type { PolicyTrainer } from '../../learn/policy-trainer.ts';
import { layout } from '../../runs/layout.ts';
import { versionsPendingMax } from '../../core/limits.ts';
import { policyName, versionName } from '../../core/names.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { sha256 } from '../../store/file-store.ts';
import { hasCode } from '../store/store.contract.ts';
import {
  act,
  advance,
  ChainTrainer,
  type Committed,
  commitFirst,
  makeRun,
  openRoles,
  planNext,
  runIn,
  type Roles,
  type TestRun,
} from './runs.ts';

/** A hold under way: signals to the run, and a way to end it. */
async function hold(
  t: TestContext,
  test: TestRun,
  roles: Roles,
  epoch: number,
  trainer: Pick<PolicyTrainer, 'rest'> = { rest: () => undefined },
) {
  const environment = new MockActivityEnvironment();
  let tell!: (held: TrainerLeased) => void;
  const told = new Promise<TrainerLeased>((resolve) => (tell = resolve));
  const { leaseTrainer } = createLeaseActivities(
    { ...roles, pending: null as never, trainer: trainer as PolicyTrainer },
    (_, held) => Promise.resolve(tell(held)),
  );
  const over = environment.run(leaseTrainer, { run: test.run, workflowId: 'words', epoch });
  over.catch(() => undefined);
  t.after(() => environment.cancel()); // its heartbeats would keep the process alive
  const held = await Promise.race([told, over.then(() => Promise.reject(new Error('it ended at once')))]);
  return { held, over, cancel: () => environment.cancel() };
}

async function until(test: TestRun, roles: Roles, step: number): Promise<Committed> {
  let last = await commitFirst(test, roles);
  while (last.state.step < step) last = await advance(test, roles, last);
  return last;
}

/** Trains and commits a step whose upload never comes. */
async function commitOnly({ run }: TestRun, roles: Roles, from: Committed, test: TestRun): Promise<Committed> {
  const { plan, curriculum, step, ordinals } = await planNext(test, roles, from);
  const trained = await act(roles.trainStep, { run, plan });
  const state = { ...from.state, step, policy: trained.policy!, curriculum };
  const outcomes = { step, issued: ordinals, ended: { trained: ordinals }, pending: '' };
  const { optimizer, engine } = trained;
  const input = { run, parent: from.parent, plan, optimizer, engine, outcomes, metrics: {}, state };
  const { sha256: parent } = await roles.commitStep(input);
  return { state, parent };
}

async function lostBeforeUpload(t: TestContext) {
  const test = await makeRun(t);
  const roles = openRoles();
  return { test, last: await commitOnly(test, roles, await until(test, roles, 2), test) };
}

describe('holding a GPU worker', () => {
  test('its trainer rests when nobody has the process any more, and not while a later hold of the same run goes on', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    let rested = 0;
    const trainer = { rest: () => void (rested += 1) };
    const first = await hold(t, test, roles, await nextTrainerEpoch({ run: test.run }), trainer);
    const second = await hold(t, test, roles, await nextTrainerEpoch({ run: test.run }), trainer);
    await first.over;
    assert.equal(rested, 0);
    second.cancel();
    await assert.rejects(second.over);
    assert.equal(rested, 1);
  });

  test('a run that holds it is told the process and the epoch it asked for, and its claim is in the store', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const epoch = await nextTrainerEpoch({ run: test.run });
    const { held, cancel, over } = await hold(t, test, roles, epoch);
    assert.deepEqual(held, { epoch: 1, holder: roles.lease.holder });
    assert.equal(await nextTrainerEpoch({ run: test.run }), 2);
    assert.ok(!roles.lease.isFree);
    cancel();
    await assert.rejects(over);
    assert.ok(roles.lease.isFree, 'a hold that is cancelled gives the worker back');
  });

  test('another run is refused by name while it is held; the same one may hold it again, which ends its hold before', async (t) => {
    const test = await makeRun(t);
    const other = await runIn(path.dirname(test.folder), {}, 'words-2');
    const roles = openRoles();
    const first = await hold(t, test, roles, 1);
    await assert.rejects(hold(t, other, roles, 1), hasCode('TrainerBusy', 'words'));
    const second = await hold(t, test, roles, 2);
    await first.over;
    assert.ok(!roles.lease.isFree, 'it is still held, by the second');
    second.cancel();
    await assert.rejects(second.over);
    await hold(t, other, roles, 1);
  });

  test('a run that gives it back is let go at once, and not the hold that it has under a later epoch', async (t) => {
    const test = await makeRun(t);
    const other = await runIn(path.dirname(test.folder), {}, 'words-2');
    const roles = openRoles();
    const giveBackTrainer = createGiveBackTrainer(roles.lease);
    const first = await hold(t, test, roles, 1);
    await giveBackTrainer({ run: other.run, epoch: 1 });
    assert.ok(!roles.lease.isFree, 'another run gives nothing back');
    await giveBackTrainer({ run: test.run, epoch: 1 });
    await first.over;
    assert.ok(roles.lease.isFree);
    await hold(t, test, roles, 2);
    await giveBackTrainer({ run: test.run, epoch: 1 });
    assert.ok(!roles.lease.isFree);
  });

  test('of two processes that take a run under one epoch, one holds it', async (t) => {
    const test = await makeRun(t);
    const [one, two] = [openRoles(), openRoles()];
    await hold(t, test, one, 1);
    await assert.rejects(hold(t, test, two, 1), hasCode('TrainerSuperseded', one.lease.holder, two.lease.holder));
    assert.ok(two.lease.isFree);
  });

  test('whoever waits says who there is, and what they are busy with', async () => {
    const say = (...trainers: { identity: string; heldBy: string | null }[]) =>
      createDescribeTrainers(() => Promise.resolve({ trainers, lastSeen: '2026-01-02T03:04:05.000Z' }))({
        workflowId: 'mine',
      });
    assert.equal(await say({ identity: 'a', heldBy: 'theirs' }), 'a GPU worker: 1 known, busy with run theirs');
    assert.match(await say({ identity: 'a', heldBy: null }), /^a GPU worker: 1 known, 1 not answering$/);
    assert.equal(
      await say({ identity: 'a', heldBy: 'theirs' }, { identity: 'b', heldBy: 'mine' }),
      'a GPU worker: 2 known, busy with run theirs, 1 not answering',
    );
    assert.match(await say(), /^a GPU worker: none since 2026-01-02T03:04:05.000Z; start one with/);
  });
});

describe('a GPU worker that wakes up after it was taken for dead', () => {
  test('trains nothing, uploads nothing and warms nothing up once another process holds the run', async (t) => {
    const test = await makeRun(t);
    const { run } = test;
    const [zombie, next] = [openRoles(), openRoles()];
    const last = await until(test, zombie, 1);
    const { plan } = await planNext(test, zombie, last);
    const made = await act(zombie.trainStep, { run, plan });
    await claimTrainer(run, { epoch: 1, holder: zombie.lease.holder });
    await claimTrainer(run, { epoch: 2, holder: next.lease.holder });
    const trained = zombie.trainers[0]!.trained.length;
    const stopped = hasCode('TrainerSuperseded', next.lease.holder, 'epoch 2');
    await assert.rejects(act(zombie.trainStep, { run, plan }), stopped);
    await assert.rejects(act(zombie.remakeVersion, { run, policy: last.state.policy }), stopped);
    await assert.rejects(act(zombie.publishVersion, { run, policy: made.policy!, optimizer: null }), stopped);
    await assert.rejects(act(zombie.warmUp, { run, from: null }), stopped);
    assert.equal(zombie.trainers[0]!.trained.length, trained);
    assert.equal(await test.store.read(made.policy!.file.key), null);
    assert.deepEqual((await act(next.trainStep, { run, plan, epoch: 2 })).policy, made.policy);
  });

  test('continues under a later claim of its own: a laptop that slept has lost nothing', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const last = await until(test, roles, 1);
    for (const epoch of [1, 2]) await claimTrainer(test.run, { epoch, holder: roles.lease.holder });
    const { plan } = await planNext(test, roles, last);
    const made = await act(roles.trainStep, { run: test.run, plan, epoch: 1 });
    assert.equal((await act(roles.trainStep, { run: test.run, plan, epoch: 2 })).recovery, made.recovery);
    assert.deepEqual(roles.trainers[0]!.trained, ['step 1', 'step 2']);
  });
});

describe('a version that was lost before its upload', () => {
  test('is found missing, made again from stored batches by another process, and stored to the byte', async (t) => {
    const { test, last } = await lostBeforeUpload(t);
    const { run } = test;
    const { policy } = last.state;
    const steps = [2, 3];
    assert.deepEqual(await openRoles().findUnpublished({ run, steps }), [policy]);
    const next = openRoles();
    assert.equal(await act(next.publishVersion, { run, policy, optimizer: null }), false, 'it is not here');
    const { replay, recovery } = await act(next.remakeVersion, { run, policy });
    assert.equal(replay, null);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [2, 1]);
    assert.equal(await act(next.publishVersion, { run, policy, optimizer: null }), true);
    assert.equal(sha256(await test.store.get(policy.file)), policy.file.sha256);
    assert.deepEqual(await next.findUnpublished({ run, steps }), []);
  });

  test('so is one whose file on the disk was damaged since, though a checkpoint names it', async (t) => {
    const test = await makeRun(t);
    const { run } = test;
    const { policy } = (await until(test, openRoles(), 2)).state;
    const steps = [1, 2];
    assert.deepEqual(await openRoles().findUnpublished({ run, steps }), []);
    const whole = (await test.store.read(policy.file.key))!;
    await test.store.put(policy.file.key, whole.slice(1));
    const next = openRoles();
    assert.deepEqual(await next.findUnpublished({ run, steps }), [policy]);
    assert.equal((await act(next.remakeVersion, { run, policy })).replay, null);
    assert.equal(await act(next.publishVersion, { run, policy, optimizer: null }), true);
    assert.deepEqual(await test.store.read(policy.file.key), whole);
  });

  test('is made again on the way to the step after it, with the optimizer of its checkpoint', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const last = await commitOnly(test, roles, await until(test, roles, 3), test); // step 4 is a checkpoint
    const { optimizer } = (await requireCommit(test.run, 4)).commit;
    assert.equal(await test.store.read(optimizer!.key), null);
    const next = openRoles();
    const { plan } = await planNext(test, roles, last);
    await act(next.trainStep, { run: test.run, plan });
    assert.equal(await act(next.publishVersion, { run: test.run, policy: last.state.policy, optimizer }), true);
    await test.store.get(optimizer!);
    await test.store.get(last.state.policy.file);
  });

  test('a trainer that holds an earlier committed version continues from there: nothing is loaded', async (t) => {
    const { test, last } = await lostBeforeUpload(t);
    const next = openRoles();
    await next.policyTrainer.bringTo(test.run, (await requireCommit(test.run, 2)).commit.policy);
    const recovery = await next.policyTrainer.bringTo(test.run, last.state.policy);
    assert.deepEqual([recovery!.restoredFrom, recovery!.replayedSteps], [null, 1]);
  });

  test('pending versions are bounded: the oldest go, and are made again when they are asked for', async (t) => {
    const test = await makeRun(t, { 'checkpoints.keep_last': '9' });
    const roles = openRoles();
    const last = await until(test, roles, versionsPendingMax + 2);
    assert.equal((await readdir(roles.pendingFolder)).length, versionsPendingMax);
    const { policy } = (await requireCommit(test.run, 1)).commit;
    await test.store.removeAll(policy.weights);
    assert.equal(await act(roles.publishVersion, { run: test.run, policy, optimizer: null }), false);
    await act(roles.remakeVersion, { run: test.run, policy });
    assert.equal(await act(roles.publishVersion, { run: test.run, policy, optimizer: null }), true);
    const { plan } = await planNext(test, roles, last);
    assert.ok((await act(roles.trainStep, { run: test.run, plan })).policy, 'and it still trains');
  });
});

describe('a trainer that names its engine', () => {
  const named = (name: string) => () => Object.assign(new ChainTrainer(), { fingerprint: () => Promise.resolve(name) });

  test('and is another one than made the version says both; the same one says nothing', async (t) => {
    const test = await makeRun(t);
    const last = await until(test, openRoles(undefined, { makeTrainer: named('torch 2.15.0') }), 2);
    for (const [now, engines] of [
      ['torch 2.15.0', undefined],
      ['torch 2.16.0', { before: 'torch 2.15.0', now: 'torch 2.16.0' }],
    ] as const) {
      const next = openRoles(undefined, { makeTrainer: named(now) });
      assert.deepEqual((await next.policyTrainer.bringTo(test.run, last.state.policy))?.engines, engines);
    }
  });
});

describe('a replay that gives other weights', () => {
  /** Step 3 is committed and not uploaded; the next worker computes other weights. */
  async function differing(t: TestContext) {
    const { test, last } = await lostBeforeUpload(t);
    const roles = openRoles(undefined, { salt: 'another engine' });
    const { plan } = await planNext(test, roles, last);
    return { test, last, roles, plan };
  }

  test('is a version of its own: nothing is trained onto it before it is planned from there', async (t) => {
    const { test, last, roles, plan } = await differing(t);
    const result = await act(roles.trainStep, { run: test.run, plan });
    assert.equal(result.policy, null);
    assert.deepEqual([result.replay!.step, result.replay!.replay, versionName(result.replay!)], [3, 1, 'v3.r1']);
    assert.notEqual(result.replay!.digest, last.state.policy.digest);
    assert.equal(result.replay!.weights, 'weights/step_3.r1/');
    assert.equal(policyName('words', 'main', 3, 1), 'words:main:3.r1');
    assert.deepEqual([result.recovery!.differs!.step, result.recovery!.differs!.isSameEngine], [3, false]);
    assert.deepEqual(roles.trainers[0]!.trained, ['step 3']);
    assert.deepEqual(
      (await act(roles.remakeVersion, { run: test.run, policy: last.state.policy })).replay,
      result.replay,
    );
  });

  test('the step after it is planned, trained and committed from it, and the chain of commits says so', async (t) => {
    const { test, last, roles, plan } = await differing(t);
    const { run } = test;
    const { replay } = await act(roles.trainStep, { run, plan });
    assert.equal(await act(roles.publishVersion, { run, policy: replay!, optimizer: null }), true);
    await test.store.get(replay!.file);
    const onto: Committed = { ...last, state: { ...last.state, policy: replay! } };
    await commitOnly(test, roles, onto, test);
    const { commit } = await requireCommit(run, 4);
    assert.deepEqual(commit.from, replay);
    assert.deepEqual((await readJson<StepPlan>(run, commit.plan!)).from, replay);
    assert.equal((await requireCommit(run, 3)).commit.from, undefined);
  });

  test('one that is stored is never overwritten by another replay of the same version', async (t) => {
    const { test, last, roles, plan } = await differing(t);
    const { run, store } = test;
    const { replay } = await act(roles.trainStep, { run, plan });
    await act(roles.publishVersion, { run, policy: replay!, optimizer: null });
    const third = openRoles(undefined, { salt: 'yet another' });
    const again = await act(third.remakeVersion, { run, policy: last.state.policy });
    assert.equal(versionName(again.replay!), 'v3.r2');
    await act(third.publishVersion, { run, policy: again.replay!, optimizer: null });
    await store.verify(replay!.file);
  });

  test('a replay of the replay that differs again is the next one', async (t) => {
    const { test, last, roles, plan } = await differing(t);
    const { replay } = await act(roles.trainStep, { run: test.run, plan });
    const third = openRoles(undefined, { salt: 'yet another' });
    const again = await act(third.remakeVersion, { run: test.run, policy: replay! });
    assert.equal(versionName(again.replay!), 'v3.r2');
    assert.notEqual(again.replay!.digest, last.state.policy.digest);
  });
});

test('what a run leaves of a GPU worker is no claim of a workflow', async (t) => {
  const test = await makeRun(t);
  await mkdir(path.join(test.folder, 'claims'), { recursive: true });
  await claimTrainer(test.run, { epoch: 1, holder: 'one' });
  assert.deepEqual(await test.store.list(layout.claims()), []);
});
