import { ActivityCancellationType, proxyActivities, proxyLocalActivities } from '@temporalio/workflow';
import type {
  HoldActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../activities/index.ts';
import { heartbeatTimeoutMs, holdAgainMs } from '../core/limits.ts';
import { taskQueues, trainerQueues } from '../core/names.ts';

/**
 * All plumbing on one screen. Every step is retried until it works or refuses: a failure that asking again can mend is
 * weather, and the run waits it out by name. What must not be retried says so itself (activities/failures.ts).
 */
const retry = { initialInterval: '200ms', backoffCoefficient: 2, maximumInterval: '10s' } as const;

/** Small, idempotent, on the orchestrator itself: no queue between them and the workflow. */
export const local = proxyLocalActivities<OrchestratorActivities>({ startToCloseTimeout: '1m', retry });

/** For what people are told while they wait: without an answer they are told that. */
export const lookup = proxyLocalActivities<OrchestratorActivities>({
  startToCloseTimeout: '10s',
  retry: { maximumAttempts: 1 },
});

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

/** What is asked of a host that may be gone is not waited for once it is cancelled. */
const onHeldHost = {
  cancellationType: ActivityCancellationType.TRY_CANCEL,
  heartbeatTimeout: heartbeatTimeoutMs,
} as const;

/**
 * Takes a GPU worker. Never retried by Temporal: each attempt is another epoch, and the workflow's to decide. Its own
 * queue is asked only for as long as a living worker needs to answer.
 */
export function holdingOn(taskQueue: string, isOwnQueue: boolean) {
  return proxyActivities<HoldActivities>({
    ...onHeldHost,
    taskQueue,
    startToCloseTimeout: '10000h',
    ...(isOwnQueue ? { scheduleToStartTimeout: holdAgainMs } : {}),
    retry: { maximumAttempts: 1 },
  });
}

/** On the GPU worker that holds the run: one thing at a time, and beside it one upload. */
export function trainingOn(holder: string) {
  const taskQueue = trainerQueues(holder).steps;
  return proxyActivities<TrainActivities>({ ...onHeldHost, taskQueue, startToCloseTimeout: '6h', retry });
}

export function uploadsOn(holder: string) {
  const taskQueue = trainerQueues(holder).uploads;
  return proxyActivities<UploadActivities>({ ...onHeldHost, taskQueue, startToCloseTimeout: '6h', retry });
}
