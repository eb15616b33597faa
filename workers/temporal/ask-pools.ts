import type { Client } from '@temporalio/client';
import { WorkflowNotFoundError } from '@temporalio/common';
import type { FoundPool, PlayingWorker, PoolStatus } from '../../core/fleet/pool-types.ts';
import { poolStatusQueryName, poolWorkflowPrefix, queueOfPool, taskQueues, trainerQueues } from '../../core/names.ts';
import { freshPollers } from '../roles/find-trainers.ts';
import { workerIn } from '../roles/worker-identity.ts';
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
  for await (const { workflowId } of client.workflow.list({ query })) {
    const pool = workflowId.slice(poolWorkflowPrefix.length);
    if (only === undefined || only === pool) found.push(await askPool(client, workflowId, pool));
  }
  return found.toSorted((a, b) => (a.pool < b.pool ? -1 : 1));
}

async function askPool(client: Client, workflowId: string, pool: string): Promise<FoundPool> {
  try {
    return await client.withDeadline(Date.now() + answerWithinMs, async () => {
      const status = await client.workflow.getHandle(workflowId).query<PoolStatus>(poolStatusQueryName);
      const [gone, workers] = await Promise.all([goneOf(client, status), workersOf(client, status)]);
      return { ...status, gone, workers };
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

/** Rollout workers that poll, and those that are at work: a worker that is full does not poll. */
async function workersOf(client: Client, { pool, trainers, waiting }: PoolStatus): Promise<PlayingWorker[]> {
  const plays = new Map<string, Set<string>>();
  for (const { identity } of await freshPollers(client, queueOfPool(taskQueues.rollout, pool)))
    plays.set(identity, new Set());
  const runs = [...trainers.flatMap(({ run }) => run ?? []), ...waiting.map(({ run }) => run)];
  for (const { workflow, worker } of await workUnderWay(client, runs))
    plays.set(worker, (plays.get(worker) ?? new Set()).add(workflow));
  return [...plays]
    .map(([identity, workflows]) => ({ worker: placeOf(identity), plays: [...workflows].toSorted() }))
    .toSorted((a, b) => (a.worker < b.worker ? -1 : 1));
}

function placeOf(identity: string): string {
  return workerIn(identity)?.place ?? identity;
}

/** Work that rollout workers have under way for these runs, and for what the runs began: rounds, evaluations, searches. */
async function workUnderWay(
  client: Client,
  runs: readonly string[],
): Promise<readonly { readonly workflow: string; readonly worker: string }[]> {
  const found: { workflow: string; worker: string }[] = [];
  const looked = new Set<string>();
  for (let next = runs; next.length > 0 && looked.size < workflowsAskedMax;) {
    const now = next.slice(0, workflowsAskedMax - looked.size);
    for (const one of now) looked.add(one);
    const children = await Promise.all(
      now.map(async (workflow) => {
        const raw = await describe(client, workflow);
        for (const { lastStartedTime, lastWorkerIdentity, state } of raw?.pendingActivities ?? []) {
          if (state !== activityStarted || !lastStartedTime || !lastWorkerIdentity) continue;
          if (workerIn(lastWorkerIdentity)?.role === 'rollout') found.push({ workflow, worker: lastWorkerIdentity });
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

/** temporal.api.enums.v1.PendingActivityState */
const activityStarted = 2;
