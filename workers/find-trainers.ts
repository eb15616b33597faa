import type { Client } from '@temporalio/client';
import type { KnownTrainers } from '../activities/index.ts';
import { taskQueues } from '../core/names.ts';

/** Runs that are asked whom they hold. */
const runsAskedMax = 50;
/** A worker polls anew every minute; one that was not heard of for longer is gone. */
const pollerFreshMs = 75_000;
/** temporal.api.enums.v1.TaskQueueType */
const activityQueue = 2;

/** The GPU workers that Temporal knows: those that ask for work, and those that a running run holds. */
export async function findTrainers(client: Client): Promise<KnownTrainers> {
  const { namespace } = client.options;
  const { pollers } = await client.workflowService.describeTaskQueue({
    namespace,
    taskQueue: { name: taskQueues.train },
    taskQueueType: activityQueue,
  });
  const seen = (pollers ?? []).map(({ identity, lastAccessTime }) => ({
    identity: identity ?? '',
    atMs: Number(lastAccessTime?.seconds ?? 0) * 1_000,
  }));
  const heldBy = new Map<string, string>();
  const running = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  let asked = 0;
  for await (const { workflowId } of client.workflow.list({ query: running, pageSize: runsAskedMax })) {
    if (++asked > runsAskedMax) break;
    const { raw } = await client.workflow.getHandle(workflowId).describe();
    for (const { activityType, lastStartedTime, lastWorkerIdentity } of raw.pendingActivities ?? []) {
      if (activityType?.name !== 'leaseTrainer' || !lastStartedTime || !lastWorkerIdentity) continue;
      heldBy.set(lastWorkerIdentity, workflowId);
    }
  }
  const fresh = seen.filter(({ atMs }) => Date.now() - atMs < pollerFreshMs).map(({ identity }) => identity);
  const identities = [...new Set([...fresh, ...heldBy.keys()])].sort();
  return {
    trainers: identities.map((identity) => ({ identity, heldBy: heldBy.get(identity) ?? null })),
    lastSeen: seen.length === 0 ? null : new Date(Math.max(...seen.map(({ atMs }) => atMs))).toISOString(),
  };
}
