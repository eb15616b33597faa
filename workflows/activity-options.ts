import { ActivityCancellationType, proxyActivities, proxyLocalActivities } from '@temporalio/workflow';
import type {
  HoldActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../activities/index.ts';
import { heartbeatTimeoutDefaultS, holdAgainMs } from '../core/limits.ts';
import { taskQueues, trainerQueues } from '../core/names.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { patiently } from './local-waits.ts';

/**
 * All plumbing on one screen. Every step is retried until it works or refuses: a failure that asking again can mend is
 * weather, and the run waits it out by name. What must not be retried says so itself (activities/failures.ts).
 */
const retry = { initialInterval: '200ms', backoffCoefficient: 2, maximumInterval: '10s' } as const;

/** Small, idempotent, on the orchestrator itself: no queue between them and the workflow, which tries them again itself. */
export const local = patiently(
  proxyLocalActivities<OrchestratorActivities>({ startToCloseTimeout: '1m', retry: { maximumAttempts: 1 } }),
);

/** For what people are told while they wait: without an answer they are told that. */
export const lookup = proxyLocalActivities<OrchestratorActivities>({
  startToCloseTimeout: '10s',
  retry: { maximumAttempts: 1 },
});

export function orchestratorFor(spec: RunSpec) {
  return proxyActivities<OrchestratorActivities>({
    taskQueue: taskQueues.orchestrator,
    startToCloseTimeout: '10m',
    heartbeatTimeout: heartbeatTimeoutMs(spec),
    retry,
  });
}

/** Needs no heartbeat: it is over in a second or its worker is dead. */
export const opening = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '1m',
  retry,
});

export function rolloutsFor(spec: RunSpec) {
  return proxyActivities<RolloutActivities>({
    taskQueue: taskQueues.rollout,
    startToCloseTimeout: '2h',
    heartbeatTimeout: heartbeatTimeoutMs(spec),
    retry,
  });
}

/** What is asked of a host that may be gone is not waited for once it is cancelled. */
const onHeldHost = (spec: RunSpec) =>
  ({
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    heartbeatTimeout: heartbeatTimeoutMs(spec),
  }) as const;

/**
 * Takes a GPU worker. Never retried by Temporal: each attempt is another epoch, and the workflow's to decide. Its own
 * queue is asked only for as long as a living worker needs to answer.
 */
export function holdingOn(spec: RunSpec, taskQueue: string, isOwnQueue: boolean) {
  return proxyActivities<HoldActivities>({
    ...onHeldHost(spec),
    taskQueue,
    startToCloseTimeout: '10000h',
    ...(isOwnQueue ? { scheduleToStartTimeout: holdAgainMs } : {}),
    retry: { maximumAttempts: 1 },
  });
}

/** On the GPU worker that holds the run: one thing at a time, and beside it one upload. */
export function trainingOn(spec: RunSpec, holder: string) {
  const taskQueue = trainerQueues(holder).steps;
  return proxyActivities<TrainActivities>({ ...onHeldHost(spec), taskQueue, startToCloseTimeout: '6h', retry });
}

export function uploadsOn(spec: RunSpec, holder: string) {
  const taskQueue = trainerQueues(holder).uploads;
  return proxyActivities<UploadActivities>({ ...onHeldHost(spec), taskQueue, startToCloseTimeout: '6h', retry });
}

/** Runs that were opened before they could say so have none in their spec. */
function heartbeatTimeoutMs(spec: RunSpec): number {
  return ((spec.heartbeatTimeoutS as number | undefined) ?? heartbeatTimeoutDefaultS) * 1000;
}
