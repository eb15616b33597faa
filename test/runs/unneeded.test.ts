/**
 * Unneeded objects are removed automatically or by `ratchet gc`, and everything that can be done with the run still can
 * be afterwards.
 */
import assert from 'node:assert/strict';
import { readdir, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { auditStore } from '../../activities/audit-run.ts';
import { listCheckpoints } from '../../runs/versions/list-checkpoints.ts';
import { reachableSteps } from '../../runs/lineages/lineages.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { lastWritten, removeRun } from '../../runs/lineages/outlived.ts';
import { findUnneeded, removeUnneeded } from '../../runs/lineages/unneeded.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import { listRunNames } from '../../runs/list-runs.ts';
import { storeOf } from '../../runs/run-access.ts';
import { FileStore } from '../../store/file-store.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { type Gateway, skipWithoutGateway, startGateway } from '../store/s3-gateway.ts';
import { act, advance, commitFirst, datasets, makeRun, openRoles } from '../activities/runs.ts';

test('gc removes what is before the oldest checkpoint that is kept; audit, rewind and the next step are as before', async (t) => {
  const test = await makeRun(t);
  const roles = openRoles();
  let last = await commitFirst(test, roles);
  while (last.state.step < 8) last = await advance(test, roles, last);

  // Checkpoints 6 and 8 are kept: by itself the run keeps each rollout of a made step once.
  const rounds = await test.store.list(layout.allRounds('main'));
  const made = rounds.filter((key) => stepOf(key)! < 8);
  assert.deepEqual(
    made.filter((key) => !layout.isScored(key)),
    [],
  );
  assert.equal(made.length, 7);
  const results = await test.store.list(layout.allResults('main'));
  assert(
    results.length > 0 && results.every((key) => key.endsWith('/metadata.json')),
    'rows are made when they are asked for',
  );

  await test.store.put(layout.pools('0'.repeat(64)), Buffer.from('{}'));
  await utimes(path.join(test.folder, layout.pools('0'.repeat(64))), 0, 0);
  const leftover = path.join(test.folder, '.tmp-cut-off');
  await writeFile(leftover, '');
  await utimes(leftover, 0, 0);
  const before = [await auditStore(test.run), await reachableSteps(test.run), await listCheckpoints(test.run)];
  const unneeded = await findUnneeded(test.run);
  const keys = unneeded.map(({ key }) => key);
  assert(keys.includes('.tmp-cut-off') && keys.includes(layout.pools('0'.repeat(64))));
  assert(keys.some((key) => key.startsWith(layout.rounds('main', 6))));
  assert(!keys.some((key) => key.startsWith(layout.rounds('main', 7))));

  await removeUnneeded(test.run, unneeded);
  assert.deepEqual(await findUnneeded(test.run), []);
  const after = [await auditStore(test.run), await reachableSteps(test.run), await listCheckpoints(test.run)];
  assert.deepEqual(after, before);
  const next = await advance(test, openRoles(), last);
  assert.equal(next.state.step, 9);
});

test('a round that is in play at a commit keeps its leases and what was sampled for it, whatever is sealed or removed', async (t) => {
  const test = await makeRun(t);
  const roles = openRoles();
  const first = await commitFirst(test, roles);
  const { state, parent } = first;
  const leased = await roles.leaseGroups({
    run: test.run,
    step: 1,
    count: 2,
    datasets,
    curriculum: state.curriculum,
    policy: state.policy,
  });
  const { step, first: from, last: to, leases } = leased.round;
  const open = [{ step, first: from, last: to, leases: leases.sha256 }];
  let last = { parent, state: { ...state, curriculum: leased.curriculum, open } };
  while (last.state.step < 4) last = (await advance(test, roles, last)) as typeof last;
  await removeUnneeded(test.run, await findUnneeded(test.run));
  assert.ok((await test.store.list(layout.allRounds('main'))).includes(leases.key));

  const { rounds, curriculum } = await roles.reopenRounds({ run: test.run, open, curriculum: last.state.curriculum });
  assert.deepEqual(
    rounds.map(({ leases: ref, isIssued }) => [ref, isIssued]),
    [[leases, true]],
  );
  assert.equal(curriculum.nextOrdinal, last.state.curriculum.nextOrdinal);
});

test('rounds that were leased after the commit are reopened in their order; leases that are not those of the commit are refused', async (t) => {
  const test = await makeRun(t);
  const roles = openRoles();
  const { state } = await commitFirst(test, roles);
  const asked = { run: test.run, step: 1, count: 2, datasets, policy: state.policy };
  const one = await roles.leaseGroups({ ...asked, groupsPerChunk: 1, curriculum: state.curriculum });
  const two = await roles.leaseGroups({ ...asked, step: 2, curriculum: one.curriculum });
  const played = await act(roles.playGroups, { run: test.run, round: two.round, chunk: { index: 0, count: 1 } });
  const { rounds, curriculum } = await roles.reopenRounds({ run: test.run, open: [], curriculum: state.curriculum });
  assert.deepEqual(
    rounds.map(({ isIssued, chunks, parts, ...round }) => [round, isIssued, chunks, parts]),
    [
      [one.round, false, one.chunks, []],
      [two.round, false, two.chunks, played.parts],
    ],
  );
  assert.deepEqual(curriculum, two.curriculum);
  const { step, first, last } = one.round;
  const partly = [{ step, first, last, leases: one.round.leases.sha256, groups: '2' }];
  const taken = await roles.reopenRounds({ run: test.run, open: partly, curriculum });
  assert.deepEqual(
    taken.rounds.map(({ chunks, isIssued }) => [chunks, isIssued]),
    [[[one.chunks[1]], true]],
  );
  const open = [{ step, first, last, leases: two.round.leases.sha256 }];
  await assert.rejects(roles.reopenRounds({ run: test.run, open, curriculum }), /the leases that the commit names/);
});

test('what a step under way has stored before its commit stays, also where no server says that the run is open', async (t) => {
  const test = await makeRun(t);
  const roles = openRoles();
  let last = await commitFirst(test, roles);
  while (last.state.step < 6) last = await advance(test, roles, last);
  // Scoring has sorted the examples of step 7 into pools, which a lease has and no commit yet.
  const pools = layout.pools('7'.repeat(64));
  const ref = await test.store.put(pools, Buffer.from('{}'));
  const leased = await roles.leaseGroups({
    run: test.run,
    step: 7,
    count: 2,
    datasets,
    curriculum: { ...last.state.curriculum, pools: ref },
    policy: last.state.policy,
  });
  const part = `${layout.round('main', 7, leased.round.first, leased.round.last)}chunk_0_of_1.jsonl`;
  const batch = layout.batchPart('main', 7, 'b'.repeat(64));
  const pending = `${layout.pending('main', 7, 'holder-1')}model.safetensors`;
  for (const key of [part, batch, pending]) await test.store.put(key, Buffer.from('{}'));

  await removeUnneeded(test.run, await findUnneeded(test.run));
  const left = await test.store.list('');
  for (const key of [pools, leased.round.leases.key, part, batch, pending]) assert.ok(left.includes(key), key);
  for (const key of [part, batch, pending]) await test.store.removeAll(key);
  assert.equal((await advance(test, openRoles(), last)).state.step, 7);
});

test('before the first commit nothing is unneeded', async (t) => {
  const test = await makeRun(t);
  await test.store.put(layout.pools('1'.repeat(64)), Buffer.from('{}'));
  assert.deepEqual(await findUnneeded(test.run), []);
});

describe('in S3', { skip: skipWithoutGateway }, () => {
  let gateway: Gateway | undefined;
  after(() => gateway?.remove());

  test('gc finds and removes the same, with sizes, and the run goes on', async (t) => {
    gateway = await startGateway();
    const here = await makeRun(t);
    const roles = openRoles();
    let last = await commitFirst(here, roles);
    while (last.state.step < 8) last = await advance(here, roles, last);
    const uri = `s3://runs/gc/?endpoint=${encodeURIComponent(`http://127.0.0.1:${gateway.port}`)}&path_style=true`;
    const there = { name: here.run.name, store: resolveStoreUri(uri, here.folder) };
    const [from, to] = [storeOf(here.run), storeOf(there)];
    await to.put(layout.run(), Buffer.from('{}'));
    for (const key of await from.list('')) await to.put(key, (await from.read(key))!);
    assert.deepEqual(await listRunNames(there.store), [there.name]);

    const unneeded = await findUnneeded(there);
    assert.ok(unneeded.length > 0);
    assert.deepEqual(unneeded, await findUnneeded(here.run));
    await removeUnneeded(there, unneeded);
    assert.deepEqual(await findUnneeded(there), []);
    const run = { ...here.run, ...there };
    assert.equal((await auditStore(run)).isSound, true);
    assert.deepEqual(await reachableSteps(run), await reachableSteps(here.run));
    const next = await advance({ ...here, run, store: to }, openRoles(), last);
    assert.equal(next.state.policy.digest, (await advance(here, openRoles(), last)).state.policy.digest);

    const written = await lastWritten(there);
    assert.ok(written !== null && written.bytes > 0 && Math.abs(Date.now() - written.atMs) < 3_600_000);
    await removeRun(there);
    assert.deepEqual([await listRunNames(there.store), await to.list(''), await lastWritten(there)], [[], [], null]);
  });
});

test('a run that is removed as a whole is found again after a kill, until nothing of it is left', async (t) => {
  const test = await makeRun(t);
  await commitFirst(test, openRoles());
  await test.store.put(layout.run(), encodeStored(layout.run(), { spec: test.spec, begunAt: '2026-11-01T00:00' }));
  const store = path.dirname(test.folder);
  const seen: string[] = [];
  // What is there before each removal is what a kill there leaves behind.
  const removeAll = Reflect.get(FileStore.prototype, 'removeAll');
  t.mock.method(FileStore.prototype, 'removeAll', async function (this: FileStore, prefix: string) {
    if (prefix !== '') seen.push((await listRunNames(test.run.store)).join());
    return removeAll.call(this, prefix);
  });
  await removeRun(test.run);
  assert.ok(seen.length > 4 && seen.every((names) => names === 'words'), String(seen));
  assert.deepEqual(await readdir(store), []);
});
