/** New versions in a store that is a folder: they wait in the run's own folder, and their commit moves them to their place. */
import assert from 'node:assert/strict';
import { readdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { layout } from '../../runs/layout.ts';
import type { RunState } from '../../core/rl/run-state.ts';
import {
  act,
  advance,
  commitFirst,
  damage,
  makeRun,
  openRoles,
  planNext,
  type Roles,
  type TestRun,
} from '../activities/runs.ts';

const pendingIn = async ({ store }: TestRun) => store.list(layout.allPending('main'));

/** A step that is trained and waits for its commit, and what commits it. Every second one leaves a checkpoint's parts. */
async function trainedStep(t: TestContext, step: number) {
  const test = await makeRun(t);
  const roles = openRoles(undefined, { stages: true });
  let last = await commitFirst(test, roles);
  while (last.state.step < step - 1) last = await advance(test, roles, last);
  const { plan, curriculum, ordinals } = await planNext(test, roles, last);
  const trained = await act(roles.trainStep, { run: test.run, plan });
  const { pendingAt, optimizer, engine } = trained;
  const state: RunState = { ...last.state, step, policy: trained.policy!, curriculum };
  const outcomes = { step, issued: ordinals, ended: { trained: ordinals }, pending: '' };
  const input = { run: test.run, parent: last.parent, plan, optimizer, engine, outcomes, metrics: {}, state };
  return {
    test,
    roles,
    trained,
    policy: trained.policy!,
    commit: (by: Roles = roles, from: string | null = pendingAt) => by.commitStep({ ...input, pendingAt: from }),
  };
}

test('a version is moved to its place by its commit: nothing of it is copied, and nothing is left where it waited', async (t) => {
  const { test, trained, policy, commit } = await trainedStep(t, 2);
  assert.match(trained.pendingAt!, /^pending\/step_2\.[0-9a-f]{16}\.[0-9a-f]{8}\/$/);
  assert.equal(await test.store.read(policy.file.key), null, 'before its commit it is no version of the run');
  assert.equal((await commit()).isPublished, true);
  await test.store.verify(policy.file);
  await test.store.verify(trained.optimizer!);
  assert.deepEqual(await pendingIn(test), []);
  assert.deepEqual(await readdir(path.join(test.folder, layout.allPending('main'))), []);
});

test('a commit that is made twice is one: what was moved before is there', async (t) => {
  const { test, roles, policy, commit } = await trainedStep(t, 1);
  await commit();
  const again = await commit(openRoles());
  assert.deepEqual([again.adopted, again.isPublished], [true, false]);
  assert.equal(await act(roles.publishVersion, { run: test.run, policy, optimizer: null }), true, 'found in the store');
  await test.store.verify(policy.file);
});

test('a version whose commit stands, but whose move was cut off, is found by its bytes when the run is opened', async (t) => {
  const { test, trained, policy, commit } = await trainedStep(t, 2);
  await commit(undefined, null);
  assert.equal(await test.store.read(policy.file.key), null);
  assert.deepEqual(await openRoles().findUnpublished({ run: test.run, steps: [1, 2] }), []);
  await test.store.verify(policy.file);
  await test.store.verify(trained.optimizer!);
  assert.deepEqual(await pendingIn(test), []);
});

test('what waited and was damaged is not taken: it is made again from stored batches', async (t) => {
  const { test, trained, policy, commit } = await trainedStep(t, 2);
  await commit(undefined, null);
  await damage(test, `${trained.pendingAt}weights/${path.basename(policy.file.key)}`);
  assert.deepEqual(await openRoles().findUnpublished({ run: test.run, steps: [2] }), [policy]);
});

test('what somebody removed while it waited is trained again, and uploaded', async (t) => {
  const { test, roles, trained, policy, commit } = await trainedStep(t, 2);
  await rm(path.join(test.folder, trained.pendingAt!), { recursive: true });
  assert.equal((await commit()).isPublished, false);
  const { optimizer } = trained;
  const next = openRoles(undefined, { stages: true });
  assert.equal(await act(roles.publishVersion, { run: test.run, policy, optimizer }), false);
  await act(next.remakeVersion, { run: test.run, policy });
  assert.equal(await act(next.publishVersion, { run: test.run, policy, optimizer }), true);
  await test.store.verify(policy.file);
});

test('a checkpoint removes what attempts that were given up left waiting', async (t) => {
  const test = await makeRun(t);
  const roles = openRoles(undefined, { stages: true });
  let last = await commitFirst(test, roles);
  await test.store.put(`${layout.pending('main', 1, 'given-up')}weights/model.safetensors`, Buffer.from('zombie'));
  while (last.state.step < 6) last = await advance(test, roles, last);
  assert.deepEqual(await pendingIn(test), []);
});
