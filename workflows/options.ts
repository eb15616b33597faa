import { ActivityCancellationType, type ActivityFunctionWithOptions, proxyActivities } from '@temporalio/workflow';
import type { EagerActivity, OpeningActivity } from '../activities/around/beating.ts';
import type {
  LeaseActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../activities/index.ts';
import { heartbeatTimeoutDefaultS, holdAgainMs } from '../core/limits.ts';
import { notRegisteredType, taskQueues, trainerQueues } from '../core/names.ts';
import type { RunSpec } from '../config/run-spec.ts';

/**
 * All plumbing on one screen. Every step is retried until it works or refuses: a failure that asking again can mend is
 * weather, and the run waits it out by name. What must not be retried says so itself (activities/around/failures.ts).
 */
const retry = { initialInterval: '200ms', backoffCoefficient: 2, maximumInterval: '10s' } as const;

/**
 * Small and idempotent, between stored objects. The worker that asks does them at once where the server allows it (eager activities). Not
 * local activities: what those answer is told in a replay where they were asked for and not where they had answered, beside everything
 * that went on meanwhile, and then the workflow goes another way (temporalio/sdk-typescript#1744, temporalio/sdk-python#1881).
 */
export const eager = withSummary(
  proxyActivities<OrchestratorActivities>({
    taskQueue: taskQueues.orchestrator,
    startToCloseTimeout: '2h', // a batch of 268 million tokens is packed in minutes; of a death the heartbeat tells
    heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
    retry,
  }),
);

/** Says in the Temporal UI of which step each is. */
function withSummary(activities: object): Pick<OrchestratorActivities, EagerActivity> {
  return new Proxy({} as Pick<OrchestratorActivities, EagerActivity>, {
    get: (_, name) => {
      const activity = Reflect.get(activities, name) as ActivityFunctionWithOptions<
        (input: unknown) => Promise<unknown>
      >;
      return (input: StepOf): Promise<unknown> => {
        const step = input.step ?? input.round?.step ?? input.state?.step;
        return activity.executeWithOptions(step === undefined ? {} : { summary: `step ${step}` }, [input]);
      };
    },
  });
}

/** What the inputs of these activities call it. */
interface StepOf {
  readonly step?: number;
  readonly round?: { readonly step: number };
  readonly state?: { readonly step: number };
}

/** For what people are told while they wait: without an answer they are told that. */
export const lookup = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '10s',
  scheduleToCloseTimeout: '30s',
  retry: { maximumAttempts: 1 },
});

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

/** What is read before a run has its settings. A worker that dies of it is noticed as soon as any other one: nothing goes on before. */
export const opening = proxyActivities<Pick<OrchestratorActivities, OpeningActivity>>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '10m',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  retry,
});

export function rolloutsFor(spec: Pick<RunSpec, 'heartbeatTimeoutS'>) {
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

/** Fails at once if this worker does not have the activity: only it polls the queue, so the run must ask another worker. */
const retryWhereKnown = { ...retry, nonRetryableErrorTypes: [notRegisteredType] };

/** On the GPU worker that holds the run: one thing at a time, and beside it one upload. */
export function trainingOn(spec: RunSpec, holder: string) {
  const taskQueue = trainerQueues(holder).steps;
  return proxyActivities<TrainActivities>({
    ...onHeldHost(spec),
    taskQueue,
    startToCloseTimeout: '6h',
    retry: retryWhereKnown,
  });
}

export function uploadsOn(spec: RunSpec, holder: string) {
  const taskQueue = trainerQueues(holder).uploads;
  return proxyActivities<UploadActivities>({
    ...onHeldHost(spec),
    taskQueue,
    startToCloseTimeout: '6h',
    retry: retryWhereKnown,
  });
}
