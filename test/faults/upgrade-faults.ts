/** Rows in which the stack goes down in the middle of a step and comes back with other code. */
import assert from 'node:assert/strict';
import { isAlive } from '../../host/is-alive.ts';
import { workflowCodeVersion } from '../../workers/program/workflow-bundle.ts';
import { codeDigest, digestOf } from '../../workers/program/code-version.ts';
import { otherVersions } from '../../workers/stack/other-versions.ts';
import { eventually } from '../eventually.ts';
import { judgeByWeights } from './judge.ts';
import { loseHolder } from './process-faults.ts';
import type { Row, Rows, Struck } from './row.ts';
import { isSecond } from './stage.ts';

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

/** Moves work between workers of two versions, in either direction: each must continue from what the other stored. */
async function changeVersions(struck: Struck): Promise<void> {
  const { stage, run, column, fired } = struck;
  const all = Object.entries(stage.stack.pids());
  const pidsOf = (role: string) => all.flatMap(([name, pid]) => (name.startsWith(`${role} worker`) ? [pid] : []));
  for (const role of ['rollout', 'train']) assert.equal(pidsOf(role).length, 2, `both versions have a ${role} worker`);
  const { beside } = stage.surroundings;
  const differ = beside !== undefined && digestOf(beside.folder) !== codeDigest();
  const lines = await eventually(
    `lines that name what is of another version: ${differ}`,
    () => otherVersions(stage.client),
    (found) => found.length > 0 === differ,
  );
  const olders = all.filter(([name]) => isSecond(name)).map(([, pid]) => pid);
  // The server lists a worker for about a minute after its end: those that earlier cells killed are named, too.
  const named = lines.map((line) => Number(/ (\d+)@/.exec(line)?.[1])).filter((pid) => isAlive(pid));
  assert.deepEqual(
    named.filter((pid) => !olders.includes(pid)),
    [],
    lines.join('\n'),
  );
  if (column !== 'generate') return loseHolder(struck);
  assert.ok(pidsOf('rollout').includes(fired.pid), `a rollout worker of ${run.name} has the chunk`);
  process.kill(fired.pid, 'SIGKILL');
}

export const upgradeFaults = {
  'two versions at once': {
    stage: 'beside the previous commit',
    action: 'hold',
    strike: changeVersions,
    columns: {
      only: ['generate', 'train', 'trained', 'commit'],
      because: 'rollouts and weights change hands there; what is between them is done by the orchestrator alone',
    },
    limitMs,
  },
  'upgrade from a version whose steps came in another order': upgraded('of another order'),
  "upgrade from the previous commit's version mid-step": upgraded('of the previous commit'),
} satisfies Rows;
