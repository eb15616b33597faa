/** Unreadable objects of a run's folder are named, and an unreadable head does not end the run. */
import assert from 'node:assert/strict';
import { truncate } from 'node:fs/promises';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { setAside } from '../../runs/lineages/repair-store.ts';
import { requireReachable } from '../../runs/lineages/lineages.ts';
import { BatchWriter, partsOfPlan } from '../../runs/rollouts/batches.ts';
import { readCommit, readHead, readJson } from '../../runs/run-access.ts';
import { decodeJson, encodeJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import type { StepCommit, StepPlan } from '../../core/rl/run-state.ts';
import { hasCode } from '../store/store.contract.ts';
import { advance, commitFirst, damage, makeRun, openRoles } from '../activities/runs.ts';

/** Checkpoints 0, 2 and 4. */
async function fourSteps(t: TestContext) {
  const test = await makeRun(t);
  const roles = openRoles();
  const commits = [await commitFirst(test, roles)];
  while (commits.length < 5) commits.push(await advance(test, roles, commits.at(-1)!));
  return { test, roles, commits };
}

test('a run whose newest commit was cut off continues from the one before it, once that is set aside by name', async (t) => {
  const { test, roles, commits } = await fourSteps(t);
  assert.deepEqual((await examineStore(test.run)).faults, []);
  const key = layout.commit('main', 4);
  await truncate(path.join(test.folder, key), 100);
  for (const attempt of [() => readHead(test.run), () => requireReachable(test.run, 2)]) {
    await assert.rejects(attempt, hasCode('CheckpointDamaged', key, 'ratchet-rl fsck words'));
  }

  const { faults, unreadableHead, whole } = await examineStore(test.run);
  assert.deepEqual([faults[0]!.key, whole], [key, { lineage: 'main', step: 3 }]);
  const moved = await setAside(test.run, unreadableHead);
  assert.equal(moved.length, 2, 'the commit, and the checkpoint that was sealed for it');
  assert(moved.every((at) => at.startsWith(layout.allQuarantined())));

  assert.equal((await readHead(test.run))!.commit.step, 3);
  const again = await advance(test, roles, commits[3]!);
  assert.equal(again.state.policy.digest, commits[4]!.state.policy.digest);
  assert.deepEqual((await examineStore(test.run)).faults, []);
});

test('a head that does not continue the commit before it is not continued from', async (t) => {
  const { test } = await fourSteps(t);
  const key = layout.commit('main', 3);
  const commit = decodeJson<StepCommit>((await test.store.read(key))!, key);
  await test.store.put(key, encodeJson({ ...commit, committedAt: new Date(0).toISOString() }));
  const { unreadableHead, whole } = await examineStore(test.run);
  assert.deepEqual([unreadableHead[0], whole], [layout.commit('main', 4), { lineage: 'main', step: 3 }]);
});

test('a file that is no JSON any more is named, with what it means', async (t) => {
  const { test } = await fourSteps(t);
  await test.store.put('claims/claim_1.json', Buffer.from('{'));
  await test.store.removeAll(`${layout.weights('main', 4)}config.json`);
  const { faults } = await examineStore(test.run);
  assert(faults.some(({ key, meaning }) => key === 'claims/claim_1.json' && meaning.includes('no workflow drives')));
  assert(faults.some(({ key, problem }) => key === layout.weights('main', 4) && problem.includes('config.json')));
});

test('a part of a batch that was damaged is named, whether a plan names it or not', async (t) => {
  const { test, commits } = await fourSteps(t);
  const writer = new BatchWriter(test.run, 5);
  await writer.add({ tokenIds: [1, 2], lossMask: [0, 1], behaviorLogprobs: [0, -1], advantages: [0, 1] }, 0);
  const left = (await writer.end({ of: 1 })).parts[0]!.key;
  assert.deepEqual((await examineStore(test.run)).faults, []);

  const { commit } = (await readCommit(test.run, commits[3]!.state.step))!;
  const [planned] = await partsOfPlan(test.run, await readJson<StepPlan>(test.run, commit.plan!));
  for (const key of [left, planned!.key]) await damage(test, key);
  const { faults } = await examineStore(test.run);
  assert.deepEqual(faults.map(({ key }) => key).toSorted(), [left, planned!.key].toSorted());
  for (const { meaning } of faults) assert.match(meaning, /cannot be trained again/);

  await test.store.removeAll(planned!.key);
  const missing = (await examineStore(test.run)).faults.find(({ key }) => key === planned!.key);
  assert.match(missing!.problem, /is missing/);
});

test('what packing left of a step that an attempt died in is removed with the other batches of that step', async (t) => {
  const test = await makeRun(t);
  const roles = openRoles();
  let last = await commitFirst(test, roles);
  const writer = new BatchWriter(test.run, 1);
  await writer.add({ tokenIds: [1, 2], lossMask: [0, 1], behaviorLogprobs: [0, -1], advantages: [0, 1] }, 0);
  const [left] = (await writer.end({ of: 1 })).parts;
  while (last.state.step < 6) last = await advance(test, roles, last);
  assert.ok(!(await test.store.list(layout.allBatches('main'))).includes(left!.key));
});
