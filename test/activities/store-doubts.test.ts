import assert from 'node:assert/strict';
import { rename } from 'node:fs/promises';
import os from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, test, type TestContext } from 'node:test';
import type { Info } from '@temporalio/activity';
import type { Client } from '@temporalio/client';
import { ApplicationFailure } from '@temporalio/common';
import { MockActivityEnvironment } from '@temporalio/testing';
import { FailureMapping } from '../../activities/around/failures.ts';
import { ProcessLease } from '../../activities/around/process-lease.ts';
import { StoreDoubts, type StoreDoubtsOptions } from '../../activities/around/store-doubts.ts';
import { StoreView } from '../../activities/around/store-view.ts';
import { FileStore } from '../../store/file-store.ts';
import { damaged, newer } from '../../store/objects.ts';
import { RatchetError } from '../../core/errors.ts';
import type { StoreMissed } from '../../core/rl/run-state.ts';
import { begunLineages, readHead, requireNamedCommit } from '../../runs/run-access.ts';
import { layout } from '../../runs/layout.ts';
import { beginLineage } from '../../runs/lineages/lineages.ts';
import { saveCheckpoint } from '../../activities/save-checkpoint.ts';
import { CountedSlots, GatedSlots } from '../../workers/roles/gated-slots.ts';
import { eventually } from '../eventually.ts';
import { advance, commitFirst, makeRun, openRoles, type TestRun } from './runs.ts';

/** A worker's interceptors, with short pauses. */
function worker({
  pauseMs = 60_000,
  ...options
}: Pick<StoreDoubtsOptions, 'damagePatienceMs' | 'changeMs'> & { readonly pauseMs?: number } = {}) {
  const view = new StoreView({ pauseMs, lookMs: 10, lookAgainMs: 10, openMs: 0 });
  const missed: [string, string][] = [];
  const doubts = new StoreDoubts({
    role: 'rollout',
    view,
    onMissed: (run, error) => missed.push([run, error.code]),
    ...options,
  });
  const mapping = new FailureMapping('test');
  const told: (string | null)[] = [];
  const signal = (_: string, { why }: StoreMissed): Promise<void> => Promise.resolve(void told.push(why));
  const client = {
    workflow: { getHandle: () => ({ signal }) },
    withAbortSignal: (_: AbortSignal, tell: () => Promise<unknown>) => tell(),
  } as unknown as Client;
  const workOn = (argument: object, play: () => Promise<unknown>, info: Partial<Info> = {}): Promise<unknown> => {
    const input = { args: [argument], headers: {} };
    const environment = new MockActivityEnvironment(info, { client });
    return environment.run(() => mapping.execute(input, (asked) => doubts.execute(asked, play)));
  };
  const work = ({ run }: Pick<TestRun, 'run'>, play: () => Promise<unknown>, info?: Partial<Info>): Promise<unknown> =>
    workOn({ run }, play, info);
  return { view, missed, told, work, workOn };
}

const named = `rollout worker ${process.pid} on ${os.hostname()}`;

function failure(type: string, isFinal: boolean, ...words: readonly string[]) {
  return (error: unknown): boolean => {
    assert(error instanceof ApplicationFailure, String(error));
    assert.deepEqual([error.type, error.nonRetryable], [type, isFinal], error.message);
    for (const word of words) assert(error.message.includes(word), `"${error.message}" does not name ${word}`);
    return true;
  };
}

async function hide(t: TestContext, { folder }: TestRun): Promise<() => Promise<void>> {
  await rename(folder, `${folder}.away`);
  const show = (): Promise<void> => rename(`${folder}.away`, folder);
  t.after(() => show().catch(() => undefined));
  return show;
}

describe('one worker’s view of a store', () => {
  test('a worker without the store begins nothing, names itself, stops polling, and continues when the store is back', async (t) => {
    const run = await makeRun(t);
    const { view, missed, work } = worker();
    const show = await hide(t, run);
    const play = t.mock.fn(() => Promise.resolve(7));
    await assert.rejects(work(run, play), failure('StoreNotSeen', false, named, run.store.uri));
    assert.equal(play.mock.callCount(), 0);
    assert.equal(missed.length, 1);
    assert.equal(view.isClear, false);
    await show();
    await eventually('it asks for work again', () => Promise.resolve(view.isClear), Boolean);
    assert.equal(await work(run, play), 7);
  });

  test('an object that is missing because the store went away is not damage', async (t) => {
    const run = await makeRun(t);
    const { work } = worker();
    const lose = async (): Promise<never> => {
      await hide(t, run);
      throw damaged('batches/step_1.rows', 'expected rows, found none');
    };
    await assert.rejects(work(run, lose), failure('StoreNotSeen', false, named));
  });

  test('a pause ends by itself, because there may be runs in other stores', async (t) => {
    const run = await makeRun(t);
    const { view, work } = worker({ pauseMs: 30 });
    await hide(t, run);
    await assert.rejects(work(run, () => Promise.resolve()));
    await eventually('it asks for work', () => Promise.resolve(view.isClear), Boolean);
  });

  test('a server that one worker cannot reach is reported with that worker’s name', async (t) => {
    const run = await makeRun(t);
    const { view, work } = worker();
    const refused = new RatchetError('StoreUnavailable', 'GetObject failed: HTTP 403');
    await assert.rejects(
      work(run, () => Promise.reject(refused)),
      failure('StoreUnavailable', false, named, '403'),
    );
    assert.equal(view.isClear, false);
  });

  test('damage is read again before it is final, and then it is final', async (t) => {
    const run = await makeRun(t);
    const broken = (): Promise<never> => Promise.reject(damaged('model.safetensors', 'expected sha256 1, found 2'));
    const patient = worker();
    await assert.rejects(
      patient.work(run, broken),
      failure('CheckpointDamaged', false, 'read again before the failure is final', 'found 2'),
    );
    assert.equal(patient.view.isClear, true);
    await assert.rejects(
      worker({ damagePatienceMs: 0 }).work(run, broken),
      failure('CheckpointDamaged', true, 'found 2'),
    );
  });

  test('a run is notified when the store is seen again, whichever activity missed it first, and however often', async (t) => {
    const run = await makeRun(t);
    const { told, work, view } = worker({ pauseMs: 20, changeMs: 0 });
    const ofRun = { workflowType: 'trainRun' };
    const refuse = (): Promise<never> => Promise.reject(new RatchetError('StoreUnavailable', 'HTTP 403'));
    const isClear = (): Promise<unknown> => eventually('it asks', () => Promise.resolve(view.isClear), Boolean);
    await assert.rejects(work(run, refuse, { workflowType: 'evaluate' }));
    await assert.rejects(work(run, refuse, ofRun));
    await eventually(
      'it is seen by a look',
      () => Promise.resolve(told.at(-1)),
      (why) => why === null,
    );
    await isClear();
    await assert.rejects(work(run, refuse, ofRun));
    await isClear();
    await work(run, () => Promise.resolve(), ofRun);
    assert.deepEqual(
      told.map((why) => why?.includes('403') ?? why),
      [true, null, true, null],
    );
  });

  test('a run is told of a store that comes and goes twice at once, and then when it is time, as it is then', async (t) => {
    const run = await makeRun(t);
    const { told, work } = worker({ pauseMs: 20, changeMs: 1_000 });
    const ofRun = { workflowType: 'trainRun' };
    const refuse = (): Promise<never> => Promise.reject(new RatchetError('StoreUnavailable', 'HTTP 403'));
    const went = () => told.map((why) => why?.includes('403') ?? why);
    for (let i = 0; i < 5; i++) {
      await assert.rejects(work(run, refuse, ofRun));
      await work(run, () => Promise.resolve(), ofRun);
    }
    assert.deepEqual(went(), [true, null]);
    await eventually('what changed last is the same again', () => delay(1_100, true), Boolean);
    assert.deepEqual(went(), [true, null]);
    for (let i = 0; i < 5; i++) {
      await work(run, () => Promise.resolve(), ofRun);
      await assert.rejects(work(run, refuse, ofRun));
    }
    await eventually(
      'it is told as it is',
      () => Promise.resolve(went().length),
      (count) => count >= 4,
    );
    assert.deepEqual(went(), [true, null, true, null], 'a look saw it');
  });

  test('a place that was seen by a look and missed again is looked for again, though no work goes well here', async () => {
    const view = new StoreView({ pauseMs: 5, lookMs: 5, lookAgainMs: 5 });
    let seen = 0;
    const missed = (): void => view.missed('a', { look: () => Promise.resolve(true), seen: () => void (seen += 1) });
    for (const times of [1, 2, 3]) {
      missed();
      await eventually(
        'it is seen',
        () => Promise.resolve(seen),
        (count) => count === times,
      );
    }
  });

  test('where other runs are served, work is asked for as long as it was not', async () => {
    const view = new StoreView({ pauseMs: 300, pauseMsMax: 300, openMs: 0, lookMs: 10_000, lookAgainMs: 10_000 });
    const missed = (place: string): void =>
      view.missed(place, { look: () => Promise.resolve(false), seen: () => undefined });
    const paused = (): Promise<unknown> => eventually('it is open', () => Promise.resolve(view.isClear), Boolean);
    missed('a');
    await paused();
    missed('a');
    assert.equal(view.isClear, false, 'there is no other run');
    view.saw('b');
    missed('c');
    await paused();
    const since = performance.now();
    missed('a');
    missed('c');
    if (performance.now() - since < 250) assert.equal(view.isClear, true, 'it is open for the other run');
    await delay(350);
    missed('c');
    assert.equal(view.isClear, false);
    await paused();
  });

  test('what a newer version wrote is for other workers: this one is named as older, and the run goes on', async (t) => {
    const run = await makeRun(t);
    const { work, view, told, missed } = worker({ damagePatienceMs: 0, pauseMs: 20 });
    const read = (): Promise<never> => Promise.reject(newer('batches/step_1.0.rows', 'expected version 1, found 2'));
    const ofRun = { workflowType: 'trainRun', activityType: 'packBatch' };
    const words = `${named} is of an older version: batches/step_1.0.rows: expected version 1, found 2. A newer Ratchet wrote it.`;
    for (let i = 0; i < 3; i++) await assert.rejects(work(run, read, ofRun), failure('WrittenByNewer', false, words));
    assert.equal(view.isClear, false);
    assert.deepEqual(missed[0]?.[1], 'WrittenByNewer', 'a GPU worker lets go of the run');
    await eventually('it asks for other work', () => Promise.resolve(view.isClear), Boolean);
    assert.equal(told.length, 1, 'that the store is there does not mean that it can be read');
    assert(told[0]!.startsWith(words));
    await work(run, () => Promise.resolve(), ofRun);
    assert.deepEqual(told.slice(1), [null]);
  });

  test('what a newer version wrote ends what a person waits for, when nobody else could read it', async (t) => {
    const run = await makeRun(t);
    const read = (): Promise<never> => Promise.reject(newer('run.json', 'expected version 1, found 2'));
    const open = { activityType: 'openRun' };
    await assert.rejects(
      worker().workOn({ config: 'words.toml' }, read, open),
      failure('WrittenByNewer', false, 'read again before'),
    );
    const takesOver = { handle: run.run, asked: null, request: 'x/y' };
    for (const input of [{ config: 'words.toml' }, { config: 'words.toml', takesOver }])
      await assert.rejects(
        worker({ damagePatienceMs: 0 }).workOn(input, read, open),
        failure('WrittenByNewer', true, 'run.json: expected version 1, found 2. A newer Ratchet wrote it'),
      );
  });

  test('damage is final at once where nobody asks again', async (t) => {
    const run = await makeRun(t);
    const broken = (): Promise<never> => Promise.reject(damaged('model.safetensors', 'expected sha256 1, found 2'));
    await assert.rejects(
      worker().work(run, broken, { retryPolicy: { maximumAttempts: 1 } }),
      failure('CheckpointDamaged', true, 'found 2'),
    );
  });

  test('a run that another version opened is not opened in another place', async (t) => {
    const run = await makeRun(t);
    const { workOn } = worker();
    await hide(t, run);
    const play = t.mock.fn(() => Promise.resolve());
    const takesOver = { handle: run.run, asked: null, request: 'x/y' };
    await assert.rejects(workOn({ config: 'words.toml', takesOver }, play), failure('StoreNotSeen', false, named));
    assert.equal(play.mock.callCount(), 0);
  });

  test('failures that have nothing to do with a store pass unchanged', async (t) => {
    const run = await makeRun(t);
    const { work, view } = worker();
    const conflict = new RatchetError('CommitConflict', 'someone else');
    await assert.rejects(
      work(run, () => Promise.reject(conflict)),
      failure('CommitConflict', true, 'someone else'),
    );
    const bug = new TypeError('a bug');
    await assert.rejects(
      work(run, () => Promise.reject(bug)),
      failure('TypeError', false, 'a bug'),
    );
    assert.equal(view.isClear, true);
  });

  test('slots are offered only while the stores are seen', async () => {
    const view = new StoreView({ pauseMs: 60_000, lookMs: 10, lookAgainMs: 10 });
    const slots = new GatedSlots(new CountedSlots(1), view);
    const context = {} as Parameters<GatedSlots['reserveSlot']>[0];
    const permit = slots.tryReserveSlot(context);
    assert(permit);
    assert.equal(slots.tryReserveSlot(context), null);
    slots.releaseSlot({ permit });
    let isThere = false;
    view.missed('run', { look: () => Promise.resolve(isThere), seen: () => undefined });
    assert.equal(slots.tryReserveSlot(context), null);
    let isGiven = false;
    void slots.reserveSlot(context, new AbortController().signal).then(() => (isGiven = true));
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.equal(isGiven, false);
    isThere = true;
    await eventually('it is given', () => Promise.resolve(isGiven), Boolean);
    assert.equal(slots.tryReserveSlot(context), null, 'the one slot is given');
  });

  test('a GPU worker that lost its run’s store releases the run, with the reason', async (t) => {
    const { run } = await makeRun(t);
    const lease = new ProcessLease('host');
    const { ousted } = lease.take(run, { workflowId: run.name, epoch: 1 });
    const why = new RatchetError('StoreNotSeen', 'not seen');
    lease.lose('another', why);
    assert.equal(ousted.aborted, false);
    lease.lose(`${run.store}${run.name}`, why);
    assert.equal(ousted.reason, why);
  });
});

describe('a listing that is older than the store', () => {
  /** Commits v0 and two steps. */
  async function withCommits(t: TestContext): Promise<TestRun> {
    const made = await makeRun(t);
    const roles = openRoles();
    let at = await commitFirst(made, roles);
    for (let step = 1; step <= 2; step++) at = await advance(made, roles, at);
    return made;
  }

  test('moves no head back and hides no lineage', async (t) => {
    const { run } = await withCommits(t);
    const before = await readHead(run);
    await beginLineage({ run, step: 1, request: 'a test' });
    t.mock.method(FileStore.prototype, 'list', () => Promise.resolve([]));
    assert.deepEqual([before?.commit.step, await readHead(run)], [2, before]);
    assert.deepEqual(
      (await begunLineages(run)).map(({ lineage }) => lineage),
      ['l2'],
    );
    assert.equal((await readHead({ ...run, lineage: 'l2' }))?.commit.step, 1);
  });

  test('removes no checkpoint', async (t) => {
    const { run, store, folder } = await withCommits(t);
    const stored = await store.list(layout.allCheckpoints('main'));
    const real = new FileStore(folder);
    const list = real.list.bind(real);
    t.mock.method(FileStore.prototype, 'list', (prefix: string) =>
      prefix === layout.allCheckpoints('main') ? Promise.resolve([]) : list(prefix),
    );
    const seal = (): Promise<unknown> =>
      new MockActivityEnvironment().run(() => saveCheckpoint({ run, step: 2, pinned: [] }));
    await assert.rejects(seal(), { code: 'StoreUnavailable' });
    t.mock.restoreAll();
    const now = await store.list(layout.allCheckpoints('main'));
    for (const key of stored) assert(now.includes(key), `${key} is there`);
    await seal();
  });

  test('the recorded sha256 of a commit is its writer’s or the next commit’s, whatever is read', async (t) => {
    const { run, store } = await withCommits(t);
    const found = await requireNamedCommit(run, 1);
    assert.equal((await requireNamedCommit(run, 1, found.sha256)).sha256, found.sha256);
    const seal = (input: object): Promise<unknown> =>
      new MockActivityEnvironment().run(() => saveCheckpoint({ run, step: 2, pinned: [], ...input }));
    await store.removeAll(`${layout.checkpoint('main', 2)}manifest.json`);
    await assert.rejects(seal({ commit: '0'.repeat(64) }), /expected sha256 000000000000…, found [0-9a-f]{12}…/);
    assert.equal(await store.read(`${layout.checkpoint('main', 2)}manifest.json`), null);
    await store.put(layout.commit('main', 1), Buffer.from(JSON.stringify({ ...found.commit, run: 'other' })));
    await assert.rejects(requireNamedCommit(run, 1), new RegExp(`expected sha256 ${found.sha256.slice(0, 12)}…`));
  });
});
