import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Rollout } from '../../core/rl/rollout/rollout.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { FileStore } from '../../store/file-store.ts';
import { temporaryFolder } from '../../backends/testing/material.ts';

const rolloutOf = (group: number, index: number): Rollout => ({
  group,
  index,
  exampleId: group,
  turns: [],
  outcome: 'ok',
});

const prefix = 'rollouts/step_1/groups_1-50000/chunk_1_of_1/';

test('a journal hands on and drops each of 50,000 groups in a time that does not grow with their number', async (t) => {
  const store = new FileStore(await temporaryFolder(t));
  const journal = await RolloutJournal.open(store, prefix, 'leases');
  const count = 50_000;
  for (let group = 1; group <= count; group++) for (const index of [0, 1]) journal.add(rolloutOf(group, index));
  for (let group = 1; group <= count; group++) {
    assert.equal(journal.of(group).length, 2);
    if (group % 10_000 !== 0) journal.release(group);
  }
  assert.equal(journal.size().rollouts, 10);
  await journal.flush();
  const again = await RolloutJournal.open(store, prefix, 'leases');
  assert.deepEqual(
    again.inOrder().map(({ group, index }) => [group, index]),
    [1, 2, 3, 4, 5].flatMap((nth) => [
      [nth * 10_000, 0],
      [nth * 10_000, 1],
    ]),
  );
});
