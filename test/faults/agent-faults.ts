/** Rows in which the worker of an agent, its program or its sandbox ends, and the rollout goes on elsewhere. */
import assert from 'node:assert/strict';
import { LeaseStore } from '../../runs/sandboxes/lease-store.ts';
import { until } from '../eventually.ts';
import { agentFile } from './agent-run.ts';
import type { Column } from './columns.ts';
import { scoredGroups } from './continuous-faults.ts';
import { judgeByWeights } from './judge.ts';
import { kill } from './process-faults.ts';
import type { Judged, Row, Rows, Struck } from './row.ts';
import { processesIn, sandboxesOf } from './sandboxed-processes.ts';

const only: readonly Column[] = ['asked', 'answered', 'once-effect', 'scoring'];

const ofAgents = {
  stage: 'agents',
  action: 'hold',
  steps: 2,
  columns: { only, because: 'no agent is at work there: see the rows of the first table' },
  judge: judgeAgents,
} as const satisfies Partial<Row>;

export const agentFaults = {
  'rollout worker killed (agents)': { ...ofAgents, strike: ({ stage }) => kill(stage, 'rollout worker') },
  'program killed (agents)': {
    ...ofAgents,
    strike: (struck) => killInside(struck, 'program'),
    cannot: { scoring: 'the program has ended by then' },
  },
  'sandbox ended by its provider (agents)': { ...ofAgents, strike: (struck) => killInside(struck, 'sandbox') },
} satisfies Rows;

async function killInside({ stage }: Struck, what: 'program' | 'sandbox'): Promise<void> {
  const project = await new LeaseStore(stage.storeUri).project();
  const sandboxes = await sandboxesOf(project);
  assert.equal(sandboxes.length, 1, 'the one sandbox that the quota allows');
  const [pid] = what === 'sandbox' ? sandboxes.map((one) => one.pid) : await processesIn(sandboxes, agentFile);
  assert.ok(pid !== undefined, `a ${what} is at work`);
  process.kill(pid, 'SIGKILL');
  const left = async (): Promise<readonly number[]> =>
    what === 'sandbox'
      ? (await sandboxesOf(project)).map((one) => one.pid)
      : processesIn(await sandboxesOf(project), agentFile);
  await until(`the end of the ${what}`, async () => !(await left()).includes(pid));
}

/** Weights and ledger are those of the undisturbed run; but what may have happened once is not done again, and its rollout has no reward. */
async function judgeAgents(judged: Judged): Promise<void> {
  const { column, run, stage } = judged;
  const rollouts = (await scoredGroups(run)).flatMap((group) => group.rollouts);
  const inDoubt = rollouts.filter(({ outcome }) => outcome === 'in_doubt');
  assert.deepEqual(
    inDoubt.map(({ reward }) => reward),
    column === 'once-effect' ? [null] : [],
    'rollouts in doubt, without a reward',
  );
  if (column !== 'once-effect') judgeByWeights(judged);
  const project = await new LeaseStore(stage.storeUri).project();
  await until('the end of all sandboxes', async () => (await sandboxesOf(project)).length === 0);
}
