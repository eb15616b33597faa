/** What nothing needs any more goes by itself or with `ratchet gc`, and whatever can be done with the run can be done after it. */
import assert from 'node:assert/strict';
import { utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { auditStore } from '../../activities/audit-run.ts';
import { listCheckpoints } from '../../runs/list-checkpoints.ts';
import { reachableSteps } from '../../runs/lineages.ts';
import { findUnneeded, removeUnneeded } from '../../runs/unneeded.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';

test('gc removes what lies before the oldest checkpoint that is kept; audit, rewind and the next step are as before', async (t) => {
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
