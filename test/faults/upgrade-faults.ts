/** Rows in which the stack goes down in the middle of a step and comes back with other code. */
import assert from 'node:assert/strict';
import { workflowCodeVersion } from '../../workers/workflow-bundle.ts';
import { judgeByWeights } from './judge.ts';
import type { Row, Rows } from './row.ts';

/** Two stacks are started for each cell: more than others take. */
const limitMs = 300_000;

const upgraded = (stage: 'of another order' | 'of the previous commit'): Row => ({
  stage,
  action: 'hold',
  strike: async ({ stage, run, harmEnds }) => {
    await stage.upgrade(true);
    harmEnds();
    const { version } = stage.surroundings;
    const hasOtherWorkflows = version && (await workflowCodeVersion(version.folder)) !== (await workflowCodeVersion());
    const isSaid = stage.said.includes(`upgrade: run ${run.name} continues from its newest commit under the new code`);
    assert.equal(isSaid, hasOtherWorkflows, stage.said);
    return stage.startAgain(run);
  },
  judge: async (judged) => {
    judgeByWeights(judged);
    await judged.stage.upgrade(false); // for the next cell
  },
  columns: {
    only: ['warm-up', 'generate', 'train', 'commit', 'continue-as-new'],
    because: 'a cell starts its stack twice; whatever the gap, the new code finds a commit and what is stored after it',
  },
  limitMs,
});

export const upgradeFaults = {
  'upgrade from a version whose steps came in another order': upgraded('of another order'),
  "upgrade from the previous commit's version mid-step": upgraded('of the previous commit'),
} satisfies Rows;
