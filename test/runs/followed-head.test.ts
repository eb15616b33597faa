/** The newest commit, as who looks at a run again and again finds it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FollowedHead } from '../../runs/lineages/followed-head.ts';
import { layout } from '../../runs/layout.ts';
import { beginLineage } from '../../runs/lineages/lineages.ts';
import { readHead } from '../../runs/run-access.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';

test('the head of a run is found after commits, in another lineage after a rewind, and refused where it does not continue', async (t) => {
  const made = await makeRun(t);
  const { run, store } = made;
  const roles = openRoles();
  const followed = new FollowedHead(run);
  assert.deepEqual(await followed.now(), { lineage: 'main', head: null });
  let at = await commitFirst(made, roles);
  assert.deepEqual(await followed.now(), { lineage: 'main', head: await readHead(run) });
  for (let step = 1; step <= 3; step++) at = await advance(made, roles, at);
  assert.equal((await followed.now()).head?.commit.step, 3);
  assert.deepEqual(await followed.now(), { lineage: 'main', head: await readHead(run) });

  await beginLineage({ run, step: 2, request: 'a test' });
  const { lineage, head } = await followed.now();
  assert.equal(lineage, 'l2');
  assert.deepEqual(head, await readHead({ ...run, lineage }));

  const { origin: _, ...before } = head!.commit;
  const next = { ...before, step: before.step + 1, parent: '0'.repeat(64) };
  await store.put(layout.commit(lineage, next.step), Buffer.from(JSON.stringify(next)));
  await assert.rejects(followed.now(), { code: 'CheckpointDamaged' });
});
