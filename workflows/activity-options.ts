import { proxyActivities, proxyLocalActivities } from '@temporalio/workflow';
import type { OrchestratorActivities, RolloutActivities, TrainActivities } from '../activities/index.ts';
import { heartbeatTimeoutMs } from '../core/limits.ts';
import { taskQueues } from '../core/names.ts';

/**
 * All plumbing on one screen. Every step is retried until it works or refuses: a failure that asking again can mend is
 * weather, and the run waits it out by name. What must not be retried says so itself (activities/failures.ts).
 */
const retry = { initialInterval: '200ms', backoffCoefficient: 2, maximumInterval: '10s' } as const;

/** Small, idempotent, on the orchestrator itself: no queue between them and the workflow. */
export const local = proxyLocalActivities<OrchestratorActivities>({ startToCloseTimeout: '1m', retry });

export const orchestrator = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '10m',
  heartbeatTimeout: heartbeatTimeoutMs,
  retry,
});

/** Needs no heartbeat: it is over in a second or its worker is dead. */
export const opening = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '1m',
  retry,
});

export const rollouts = proxyActivities<RolloutActivities>({
  taskQueue: taskQueues.rollout,
  startToCloseTimeout: '2h',
  heartbeatTimeout: heartbeatTimeoutMs,
  retry,
});

export const training = proxyActivities<TrainActivities>({
  taskQueue: taskQueues.train,
  startToCloseTimeout: '6h',
  heartbeatTimeout: heartbeatTimeoutMs,
  retry,
});
