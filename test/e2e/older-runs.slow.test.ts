/** Recorded runs of other days and failpoints; older-runs.e2e.test.ts has the one that shows problems soonest. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { requireSameWeights, takeOver } from './older-runs.ts';

describe('at level 0 the weights are those of a run that was ended between two steps', () => {
  let undisturbed: readonly StepCommit[];
  before(async () => {
    undisturbed = (await takeOver('nov-24-level-0-between', { fromCommit: true })).commits;
  });
  for (const name of [
    'nov-24-noon-level-0-between',
    'nov-24-level-0-between',
    'nov-25-level-0-between',
    'nov-26-level-0-between',
  ])
    test(`${name}: a step after the last checkpoint is planned and not trained`, async () => {
      const { commits, recorded } = await takeOver(name);
      assert.equal(recorded, 6, 'steps 0 to 5 were committed, and the last checkpoint is that of step 3');
      requireSameWeights(commits, undisturbed);
    });
});

describe('at level 1 every group is trained or accounted for', () => {
  for (const name of ['nov-24-level-1-sampling', 'nov-26-level-1-sampling'])
    test(name, async () => {
      const { commits } = await takeOver(name, { level: 1 });
      assert.equal(commits.length, 9);
    });
});
