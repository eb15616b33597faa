import { after, before, test } from 'node:test';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { commitsOf, openOlderProject, requireSameWeights, takeOver, train } from './older-runs.ts';
import type { SmallProject } from './small-run.ts';

let project: SmallProject;
let undisturbed: readonly StepCommit[];
before(async () => {
  project = await openOlderProject(0);
  await train(project, 'undisturbed');
  undisturbed = await commitsOf(project, 'undisturbed');
});
after(() => project?.close());

test('a run of 24 November that was killed while it sampled, two steps after its checkpoint, continues and ends with the weights of an undisturbed one', async () => {
  const { commits } = await takeOver(project, 'nov-24-level-0-sampling');
  requireSameWeights(commits, undisturbed);
});
