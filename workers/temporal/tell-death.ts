import os from 'node:os';
import { ActivityNotFoundError, type Client } from '@temporalio/client';
import { ApplicationFailure } from '@temporalio/common';
import type { WorkerRole } from '../../core/names.ts';
import { workerIn, workerName } from '../roles/worker-identity.ts';
import { allPendingActivities } from './pending-activities.ts';

/** Milliseconds before another worker gets what the dead one had. */
const againMs = 100;
/** Most open workflows that are asked; activities of the rest are found by their heartbeat timeout. */
const workflowsMax = 500;

/** A worker's process of this host that has ended. */
interface Death {
  readonly role: WorkerRole;
  readonly pid: number;
  /** The tag in its identity: in another container a worker may have its process number and host name. */
  readonly tag: string;
  /** `was killed (SIGKILL)` */
  readonly how: string;
}

/**
 * Fails the activities of a worker that has died, so that Temporal gives them to another one at once. Without this
 * they wait for their heartbeat timeout. Resolves to their number.
 *
 * An activity is named by its id, as only the dead process knew its task token. One that Temporal has given to another
 * worker since has another identity, and is left alone; the moment between the look and the failure is far shorter than
 * any heartbeat timeout.
 */
export async function tellDeath(
  client: Pick<Client, 'connection' | 'options' | 'activity'>,
  { role, pid, tag, how }: Death,
): Promise<number> {
  const place = `${pid}@${os.hostname()}`;
  const held = (await allPendingActivities(client, workflowsMax)).filter(({ isRunning, worker }) => {
    const named = isRunning ? workerIn(worker) : null;
    return named !== null && named.role === role && named.place === place && named.tag === tag;
  });
  const failure = ApplicationFailure.create({
    type: 'WorkerDied',
    message: `${workerName({ role, place })} ${how}`,
    nextRetryDelay: againMs,
  });
  const told = await Promise.all(
    held.map(({ workflowId, runId, activityId }) =>
      client.activity.fail({ workflowId, runId, activityId }, failure).then(
        () => 1,
        (error: unknown) => {
          if (error instanceof ActivityNotFoundError) return 0; // its timeout was faster
          throw error;
        },
      ),
    ),
  );
  return told.reduce<number>((sum, one) => sum + one, 0);
}
