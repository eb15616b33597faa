/**
 * Rows of runs above level 0. At level 1 the next step's round is leased with the batch before it, or with the broadcast; at level 2 groups
 * of all ages are in flight when a step, a commit, or an execution ends.
 */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { decodeRows } from '../../store/objects.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { layout } from '../../runs/layout.ts';
import { until } from '../eventually.ts';
import type { Column } from './columns.ts';
import { deleteDatabase } from './database-faults.ts';
import { heartbeatTimeoutMs } from './fake-run.ts';
import { kill } from './process-faults.ts';
import type { Judged, Row, Rows, Struck } from './row.ts';
import type { StagedRun } from './stage.ts';

const lookMs = 50;

const only: readonly Column[] = [
  'lease',
  'generate',
  'ended',
  'plan',
  'trained',
  'commit',
  'broadcast',
  'checkpoint',
  'continue-as-new',
];

const asAtLevel0 = 'the same at every level: see the rows of the first table';

const atLevel1 = {
  stage: 'level 1',
  action: 'hold',
  columns: { only: ['broadcast-lease', 'batch-lease', 'trained', 'commit', 'continue-as-new'], because: asAtLevel0 },
  judge: judgeByLedger,
} as const satisfies Partial<Row>;

const atLevel2 = {
  stage: 'level 2',
  action: 'hold',
  // While groups are in play, a round is leased by an activity of its own; the first one meets none.
  gaps: { lease: { failpoint: 'lease.stored', at: 2 } },
  columns: { only, because: asAtLevel0 },
  judge: judgeByLedger,
} as const satisfies Partial<Row>;

export const continuousFaults = {
  'orchestrator worker killed (level 1)': {
    ...atLevel1,
    strike: ({ stage }) => kill(stage, 'orchestrator worker'),
    losesNothing: true,
  },
  'rollout worker killed (level 1)': { ...atLevel1, strike: ({ stage }) => kill(stage, 'rollout worker') },
  'GPU worker killed (level 1)': {
    ...atLevel1,
    strike: ({ stage }) => kill(stage, 'train worker'),
    losesNothing: true,
  },
  'Temporal server killed (level 1)': { ...atLevel1, strike: ({ stage }) => kill(stage, 'Temporal server') },
  'database deleted (level 1)': { ...atLevel1, strike: deleteDatabase },
  'activity fails (level 1)': { ...atLevel1, action: 'fail', strike: () => Promise.resolve() },
  'orchestrator worker killed (level 2)': {
    ...atLevel2,
    strike: ({ stage }) => kill(stage, 'orchestrator worker'),
    losesNothing: true,
  },
  'rollout worker killed (level 2)': { ...atLevel2, strike: ({ stage }) => kill(stage, 'rollout worker') },
  'GPU worker killed (level 2)': {
    ...atLevel2,
    strike: ({ stage }) => kill(stage, 'train worker'),
    losesNothing: true,
  },
  'Temporal server killed (level 2)': { ...atLevel2, strike: ({ stage }) => kill(stage, 'Temporal server') },
  'rollout worker told to end (level 2)': { ...atLevel2, strike: drain },
  'one of two rollout workers killed (level 2)': {
    ...atLevel2,
    stage: 'level 2, two rollout workers',
    strike: ({ stage }) => kill(stage, 'rollout worker 2'),
  },
  'workflow that plays rounds terminated (level 2)': {
    ...atLevel2,
    cannot: { 'continue-as-new': 'what it plays may have ended by the time that the next execution begins' },
    strike: terminateFlows,
  },
} satisfies Rows;

/** It finishes turns under way, and its successor generates the rest. */
async function drain({ stage, release }: Struck): Promise<void> {
  const role = 'rollout worker';
  const restartsBefore = stage.stack.restarts()[role] ?? 0;
  process.kill(stage.pid(role), 'SIGTERM');
  release();
  await until(`another ${role}`, () => (stage.stack.restarts()[role] ?? 0) > restartsBefore, { everyMs: lookMs });
}

/** The activities of a terminated workflow hear of it with a heartbeat. What is in flight then may be lost. */
async function terminateFlows({ stage, run, release, noteInFlight }: Struck): Promise<void> {
  const query = `WorkflowType='playRounds' AND ExecutionStatus='Running' AND WorkflowId BETWEEN '${run.name}.' AND '${run.name}.~'`;
  let ended = 0;
  const end = async (): Promise<boolean> => {
    for await (const { workflowId } of stage.client.workflow.list({ query })) {
      await stage.client.workflow.getHandle(workflowId).terminate('lost');
      ended += 1;
    }
    return ended > 0;
  };
  await until('a workflow that plays rounds', end, { everyMs: lookMs });
  release();
  const heardBy = performance.now() + heartbeatTimeoutMs;
  while (performance.now() < heardBy) {
    await noteInFlight();
    await delay(lookMs);
  }
}

/**
 * Chance decides which groups a step gets, and which are in flight at the end; but each is trained once, and none is
 * lost.
 */
async function judgeByLedger({ run, summary, undisturbed }: Judged): Promise<void> {
  assert.equal(summary.ledger.counts['trained'], undisturbed.summary.ledger.counts['trained']);
  const ordinals = (await scoredGroups(run)).map(({ ordinal }) => ordinal);
  assert.equal(new Set(ordinals).size, ordinals.length, 'every group is scored once');
}

/** All that a run has stored. */
export async function scoredGroups({ store }: Pick<StagedRun, 'store'>): Promise<ScoredGroup[]> {
  const keys = (await store.list(layout.allRounds('main'))).filter((key) => layout.isScored(key));
  const groups = await Promise.all(
    keys.map(async (key) => decodeRows<ScoredGroup>((await store.read(key)) ?? Buffer.of(), key)),
  );
  return groups.flat();
}
