/** Recorded runs of other days and failpoints; older-runs.e2e.test.ts has the one that shows problems soonest. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { commitsOf, openOlderProject, requireSameWeights, takeOver, train } from './older-runs.ts';

describe('at level 0 the weights are those of an undisturbed run', () => {
  for (const name of [
    'nov-24-noon-level-0-between',
    'nov-24-level-0-between',
    'nov-25-level-0-between',
    'nov-26-level-0-between',
  ]) {
    test(`${name}: a step after the last checkpoint is planned and not trained`, async () => {
      const project = await openOlderProject(0);
      try {
        const { commits, recorded } = await takeOver(project, name);
        assert.equal(recorded, 6, 'steps 0 to 5 were committed, and the last checkpoint is that of step 3');
        await train(project, 'undisturbed');
        requireSameWeights(commits, await commitsOf(project, 'undisturbed'));
      } finally {
        await project.close();
      }
    });
  }
});

describe('at level 1 every group is trained or accounted for', () => {
  for (const name of ['nov-24-level-1-sampling', 'nov-26-level-1-sampling']) {
    test(name, async () => {
      const project = await openOlderProject(1);
      try {
        const { commits, recorded } = await takeOver(project, name);
        assert.ok(recorded > 1 && commits.length === 9, `${recorded} commits before, ${commits.length} in all`);
      } finally {
        await project.close();
      }
    });
  }
});
