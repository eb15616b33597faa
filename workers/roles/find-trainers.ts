import type { Client } from '@temporalio/client';
import type { KnownTrainers } from '../../activities/index.ts';
import { queueOfPool, taskQueues } from '../../core/names.ts';
import { describeWorkflow, listWorkflows } from '../temporal/list-workflows.ts';

/** Most runs that are asked for their holder. */
const runsAskedMax = 50;
/** A worker polls anew every minute; one without a poll for longer is gone. */
const pollerFreshMs = 75_000;
/** Milliseconds for which a number of pollers is cached. */
const countedMs = 2_000;
/** temporal.api.enums.v1.TaskQueueType */
const activityQueue = 2;

interface Poller {
  readonly identity: string;
  readonly atMs: number;
}

/** Number of processes that poll a queue, at least 1; refreshed after a while. */
function pollerCount(client: () => Client, taskQueue: string): () => Promise<number> {
  let [counted, at] = [1, -Infinity];
  return async () => {
    if (performance.now() - at < countedMs) return counted;
    at = performance.now();
    const fresh = await freshPollers(client(), taskQueue);
    counted = Math.max(1, new Set(fresh.map(({ identity }) => identity)).size);
    return counted;
  };
}

/** The same for rollout workers: of a pool, or of none. */
export function pollerCounts(client: () => Client): (pool?: string) => Promise<number> {
  const counts = new Map<string, () => Promise<number>>();
  return (pool) => {
    const queue = queueOfPool(taskQueues.rollout, pool);
    const count = counts.get(queue) ?? pollerCount(client, queue);
    counts.set(queue, count);
    return count();
  };
}

/** Workers that poll a queue for activities, or did so a moment ago. */
export async function freshPollers(client: Client, taskQueue: string): Promise<Poller[]> {
  return (await pollersOf(client, taskQueue)).filter(isFresh);
}

/** All that polled a queue for activities within the last minutes. */
export async function pollersOf(client: Client, name: string): Promise<Poller[]> {
  const { namespace } = client.options;
  const asked = { namespace, taskQueue: { name }, taskQueueType: activityQueue };
  const { pollers } = await client.workflowService.describeTaskQueue(asked);
  return (pollers ?? []).map(({ identity, lastAccessTime }) => ({
    identity: identity ?? '',
    atMs: Number(lastAccessTime?.seconds ?? 0) * 1_000,
  }));
}

function isFresh({ atMs }: Poller): boolean {
  return Date.now() - atMs < pollerFreshMs;
}

/** GPU workers that Temporal knows: those that poll, and those that a running run holds. */
export async function findTrainers(client: Client): Promise<KnownTrainers> {
  const seen = await pollersOf(client, taskQueues.train);
  const heldBy = new Map<string, string>();
  const running = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  let asked = 0;
  for await (const { workflowId } of listWorkflows(client, running, runsAskedMax)) {
    if (++asked > runsAskedMax) break;
    const { raw } = await describeWorkflow(client, workflowId);
    for (const { activityType, lastStartedTime, lastWorkerIdentity } of raw.pendingActivities ?? []) {
      if (activityType?.name !== 'leaseTrainer' || !lastStartedTime || !lastWorkerIdentity) continue;
      heldBy.set(lastWorkerIdentity, workflowId);
    }
  }
  const fresh = seen.filter(isFresh).map(({ identity }) => identity);
  const identities = [...new Set([...fresh, ...heldBy.keys()])].sort();
  return {
    trainers: identities.map((identity) => ({ identity, heldBy: heldBy.get(identity) ?? null })),
    lastSeen: seen.length === 0 ? null : new Date(Math.max(...seen.map(({ atMs }) => atMs))).toISOString(),
  };
}
