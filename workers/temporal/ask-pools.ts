import type { Client } from '@temporalio/client';
import { WorkflowNotFoundError } from '@temporalio/common';
import type { FoundPool, PlayedWork, PlayingWorker, PoolStatus } from '../../core/fleet/pool-types.ts';
import {
  memoKeys,
  poolStatusQueryName,
  poolWorkflowPrefix,
  queueOfPool,
  taskQueues,
  trainerQueues,
} from '../../core/names.ts';
import { freshPollers } from '../roles/find-trainers.ts';
import { workerIn } from '../roles/worker-identity.ts';
import { listWorkflows, memoOf } from './list-workflows.ts';
import { readActivity, rolloutActivities } from './pending-activities.ts';
import { rootMessage } from './root-message.ts';

/** A pool that answers within this time is shown with all that it knows. */
const answerWithinMs = 5_000;
/** Most trainers that are asked for, and most workflows that are looked at, for one pool. */
const trainersAskedMax = 200;
const workflowsAskedMax = 100;

/** The open pools of a server, by name. */
export async function askPools(client: Client, only?: string): Promise<FoundPool[]> {
  const found: FoundPool[] = [];
  const query = "WorkflowType='pool' AND ExecutionStatus='Running'";
  for await (const { workflowId } of listWorkflows(client, query)) {
    const pool = workflowId.slice(poolWorkflowPrefix.length);
    if (only === undefined || only === pool) found.push(await askPool(client, workflowId, pool));
  }
  return found.toSorted((a, b) => (a.pool < b.pool ? -1 : 1));
}

async function askPool(client: Client, workflowId: string, pool: string): Promise<FoundPool> {
  try {
    return await client.withDeadline(Date.now() + answerWithinMs, async () => {
      const status = await client.workflow.getHandle(workflowId).query<PoolStatus>(poolStatusQueryName);
      const open = await openWork(client, pool);
      const [gone, { workers, waiting }] = await Promise.all([goneOf(client, status), workersOf(client, status, open)]);
      const waitsFor = (workflow: string): string | null =>
        workers.length === 0
          ? 'no rollout worker has joined the pool'
          : waiting.has(workflow)
            ? 'a rollout worker that has room'
            : null;
      const played = open.map((one) => ({ ...one, waitsFor: waitsFor(one.workflow) }));
      return { ...status, gone, workers, played };
    });
  } catch (error) {
    return { pool, trouble: rootMessage(error) };
  }
}

/** Trainers that nobody holds and that poll no more. One that is held and gone is told by its run. */
async function goneOf(client: Client, { trainers }: PoolStatus): Promise<string[]> {
  const idle = trainers.filter(({ run }) => run === null).slice(0, trainersAskedMax);
  const polling = await Promise.all(idle.map(({ trainer }) => freshPollers(client, trainerQueues(trainer).hold)));
  return idle.filter((_, i) => polling[i]!.length === 0).map(({ trainer }) => trainer);
}

/** Evaluations and searches that are under way in a pool, as it is in their memo. */
async function openWork(client: Client, pool: string): Promise<readonly Omit<PlayedWork, 'waitsFor'>[]> {
  const query = "WorkflowType IN ('evaluate', 'optimizePrompt') AND ExecutionStatus='Running'";
  const found: Omit<PlayedWork, 'waitsFor'>[] = [];
  for await (const listed of listWorkflows(client, query)) {
    const { workflowId, type, startTime } = listed;
    const memo = await memoOf(client, listed.raw, () => undefined); // one that cannot be read is of no pool of ours
    if (memo?.[memoKeys.pool] !== pool) continue;
    const kind = type === 'evaluate' ? 'evaluation' : 'search';
    found.push({ workflow: workflowId, kind, since: startTime.getTime() });
    if (found.length === workflowsAskedMax) break;
  }
  return found;
}

/** Rollout workers that poll, and those that are at work, as a full one does not poll; and the workflows whose work waits for one. */
async function workersOf(
  client: Client,
  { pool, trainers, waiting }: PoolStatus,
  open: readonly { readonly workflow: string }[],
): Promise<{ readonly workers: readonly PlayingWorker[]; readonly waiting: ReadonlySet<string> }> {
  const plays = new Map<string, Set<string>>();
  for (const { identity } of await freshPollers(client, queueOfPool(taskQueues.rollout, pool)))
    plays.set(identity, new Set());
  const runs = [...trainers.flatMap(({ run }) => run ?? []), ...waiting.map(({ run }) => run)];
  const work = await workUnderWay(client, [...open.map(({ workflow }) => workflow), ...runs]);
  for (const { workflow, worker } of work) {
    if (worker !== null) plays.set(worker, (plays.get(worker) ?? new Set()).add(workflow));
  }
  const playing = new Set(work.flatMap(({ workflow, worker }) => (worker === null ? [] : [workflow])));
  const workers = [...plays]
    .map(([identity, workflows]) => ({ worker: placeOf(identity), plays: [...workflows].toSorted() }))
    .toSorted((a, b) => (a.worker < b.worker ? -1 : 1));
  return { workers, waiting: new Set(work.map(({ workflow }) => workflow).filter((one) => !playing.has(one))) };
}

function placeOf(identity: string): string {
  return workerIn(identity)?.place ?? identity;
}

/** Work for rollout workers of these workflows, and of what they began: rounds, evaluations, searches. `worker` null: it waits for one. */
async function workUnderWay(
  client: Client,
  workflows: readonly string[],
): Promise<readonly { readonly workflow: string; readonly worker: string | null }[]> {
  const found: { workflow: string; worker: string | null }[] = [];
  const looked = new Set<string>();
  for (let next = workflows; next.length > 0 && looked.size < workflowsAskedMax;) {
    const now = next.slice(0, workflowsAskedMax - looked.size);
    for (const one of now) looked.add(one);
    const children = await Promise.all(
      now.map(async (workflow) => {
        const raw = await describe(client, workflow);
        for (const { name, isRunning, worker } of (raw?.pendingActivities ?? []).map(readActivity)) {
          if (isRunning && workerIn(worker)?.role === 'rollout') found.push({ workflow, worker });
          else if (!isRunning && rolloutActivities.has(name)) found.push({ workflow, worker: null });
        }
        return (raw?.pendingChildren ?? []).flatMap(({ workflowId }) => workflowId ?? []);
      }),
    );
    next = children.flat().filter((one) => !looked.has(one));
  }
  return found;
}

/** null: the workflow has ended, and Temporal has forgotten it. */
async function describe(client: Client, workflow: string) {
  try {
    return (await client.workflow.getHandle(workflow).describe()).raw;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}
