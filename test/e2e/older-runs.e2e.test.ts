import { test } from 'node:test';
import { requireSameWeights, takeOver } from './older-runs.ts';

test('a run of 24 November that was killed while it sampled, two steps after its checkpoint, continues and ends with the weights that it has when it was ended between two steps', async () => {
  const undisturbed = await takeOver('nov-24-level-0-sampling', { fromCommit: true });
  const { commits } = await takeOver('nov-24-level-0-sampling');
  requireSameWeights(commits, undisturbed.commits);
});
