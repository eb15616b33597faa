import {
  ActivityCancellationType,
  ActivityFailure,
  proxyActivities,
  proxyLocalActivities,
  TimeoutFailure,
  workflowInfo,
} from '@temporalio/workflow';
import type {
  LeaseActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../activities/index.ts';
import { heartbeatTimeoutDefaultS, heartbeatTimeoutSlowS, holdAgainMs } from '../core/limits.ts';
import { taskQueues, trainerQueues } from '../core/names.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { patiently } from './control/local-waits.ts';

/**
 * All plumbing on one screen. Every step is retried until it works or refuses: a failure that asking again can mend is
 * weather, and the run waits it out by name. What must not be retried says so itself (activities/around/failures.ts).
 */
const retry = { initialInterval: '200ms', backoffCoefficient: 2, maximumInterval: '10s' } as const;

/** What {@link local} asks for where it takes long. */
const onOrchestrator = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '10m',
  heartbeatTimeout: heartbeatTimeoutSlowS * 1000,
  retry,
});

/**
 * Small, idempotent, on the orchestrator itself: no queue between them and the workflow. One at a time: of several that are
 * under way together the results come as they are done, but in a replay as they were asked for, and then the workflow goes
 * another way (temporalio/sdk-typescript#1744, temporalio/sdk-python#1881). One that takes long is asked for again as any other activity.
 * What fails is tried again by the workflow, which can say meanwhile what it waits for, and lets the others pass.
 */
export const local = patiently(orElsewhere(oneAtATime(proxyLocal()), onOrchestrator));

/**
 * A local activity that outlives two workflow tasks is resolved in a replay before what happened meanwhile, and the workflow goes another
 * way: its run can then never be gone on with. So each ends before its task is renewed, which is at four fifths of its timeout.
 */
const localTaskShare = 0.5;
const localMsMax = 3_000;

function proxyLocal(): OrchestratorActivities {
  return new Proxy({} as OrchestratorActivities, {
    get: (_, name) => {
      return (...input: unknown[]): Promise<unknown> => {
        const timeout = Math.min(localMsMax, workflowInfo().taskTimeoutMs * localTaskShare);
        const activities = proxyLocalActivities<Record<string, (...input: unknown[]) => Promise<unknown>>>({
          scheduleToCloseTimeout: timeout,
          retry: { maximumAttempts: 1 },
        });
        return activities[String(name)]!(...input);
      };
    },
  });
}

/** The same activities; one that took too long as one of the others. */
function orElsewhere<Activities extends object>(activities: Activities, others: object): Activities {
  return new Proxy(activities, {
    get: (target, name) => {
      const activity = Reflect.get(target, name) as (...input: unknown[]) => Promise<unknown>;
      const other = Reflect.get(others, name) as typeof activity;
      return (...input: unknown[]): Promise<unknown> =>
        activity(...input).catch((error: unknown) => {
          // In a replay the failure comes as it is.
          const failure = error instanceof ActivityFailure ? error.cause : error;
          if (failure instanceof TimeoutFailure) return other(...input);
          throw error;
        });
    },
  });
}

/** For what people are told while they wait: without an answer they are told that. */
export const lookup = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '10s',
  scheduleToCloseTimeout: '30s',
  retry: { maximumAttempts: 1 },
});

function oneAtATime<Activities extends object>(activities: Activities): Activities {
  let last: Promise<unknown> = Promise.resolve(); // of this workflow alone: each has modules of its own
  return new Proxy(activities, {
    get: (target, name) => {
      const activity = Reflect.get(target, name) as (...input: unknown[]) => Promise<unknown>;
      return (...input: unknown[]): Promise<unknown> => {
        const turn = last.then(() => activity(...input));
        last = turn.catch(() => undefined); // whoever asked has its failure
        return turn;
      };
    },
  });
}

export function orchestratorFor(spec: RunSpec) {
  return proxyActivities<OrchestratorActivities>({
    taskQueue: taskQueues.orchestrator,
    startToCloseTimeout: '10m',
    heartbeatTimeout: spec.heartbeatTimeoutS * 1000,
    retry,
  });
}

/** Of an evaluation, beside its workflow: opening reads a dataset, closing all its rows. */
export const evaluationParts = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '30m',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  retry,
});

/** A chunk takes as long as its model does; one whose servers are away is asked for again until they are back. */
export const evaluationChunks = proxyActivities<RolloutActivities>({
  taskQueue: taskQueues.rollout,
  startToCloseTimeout: '10000h',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  retry,
});

/** An attempt of a search for a better prompt ends when it is asked to, and gives what it has. */
export const promptSearches = proxyActivities<RolloutActivities>({
  taskQueue: taskQueues.rollout,
  startToCloseTimeout: '10000h',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  retry,
});

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
    heartbeatTimeout: spec.heartbeatTimeoutS * 1000,
    retry,
  });
}

/** What is asked of a host that may be gone is not waited for once it is cancelled. */
const onHeldHost = (spec: RunSpec) =>
  ({
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    heartbeatTimeout: spec.heartbeatTimeoutS * 1000,
  }) as const;

/**
 * Takes a GPU worker. Never retried by Temporal: each attempt is another epoch, and the workflow's to decide. Its own
 * queue is asked only for as long as a living worker needs to answer.
 */
export function holdingOn(spec: RunSpec, taskQueue: string, isOwnQueue: boolean) {
  return proxyActivities<LeaseActivities>({
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
