import {
  ActivityCancellationType,
  type ActivityFunctionWithOptions,
  proxyActivities,
  workflowInfo,
} from '@temporalio/workflow';
import type { EagerActivity, OpeningActivity } from '../activities/around/beating.ts';
import type {
  LeaseActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../activities/index.ts';
import { heartbeatTimeoutDefaultS, holdAgainMs } from '../core/limits.ts';
import { queuePriorityOf, type RolloutPriority, rolloutPriority } from '../core/fleet/rollout-turns.ts';
import { memoKeys, notRegisteredType, queueOfPool, taskQueues, trainerQueues } from '../core/names.ts';
import type { Overrides } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';

/**
 * All plumbing on one screen. Every step is retried until it works or refuses: a failure that may pass is waited for,
 * under a label. Failures that must not be retried are marked so, and the others say when (activities/around/failures.ts).
 * These intervals are those after a worker's death.
 */
const retry = { initialInterval: '200ms', backoffCoefficient: 2, maximumInterval: '1s' } as const;

/**
 * Small and idempotent activities between stored objects. The worker that schedules them executes them at once if the
 * server allows it (eager activities). Not local activities: on replay their results arrive where they were scheduled
 * and not where they completed, relative to concurrent events, and the workflow takes another path
 * (temporalio/sdk-typescript#1744, temporalio/sdk-python#1881).
 */
export const eager = withSummary(
  proxyActivities<OrchestratorActivities>({
    taskQueue: taskQueues.orchestrator,
    startToCloseTimeout: '2h', // packing a batch of 268 million tokens takes minutes; a missing heartbeat shows a death
    heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
    retry,
  }),
);

/** Shows the step of each in the Temporal UI. */
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

/** Names of the step in the inputs of these activities. */
interface StepOf {
  readonly step?: number;
  readonly round?: { readonly step: number };
  readonly state?: { readonly step: number };
}

/** Used in messages to waiting people, who also learn when there is no answer. */
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

/** Parts of an evaluation: opening reads a dataset, closing all its rows. */
export const evaluationParts = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '30m',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  retry,
});

/** A sweep of sandboxes waits for providers to remove what they were told to. The next one does what this did not. */
export const sweeping = proxyActivities<OrchestratorActivities>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '30m',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  retry,
});

/** A chunk takes as long as its model does; while its servers are away it is retried. */
export const evaluationChunks = (rollouts: number) =>
  proxyActivities<RolloutActivities>({
    taskQueue: queueOfPool(taskQueues.rollout, poolHere()),
    priority: priorityHere(rollouts),
    startToCloseTimeout: '10000h',
    heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
    retry,
  });

/** An attempt of a search for a better prompt ends on request, and returns what it has. */
export const promptSearches = (rollouts: number) =>
  proxyActivities<RolloutActivities>({
    taskQueue: queueOfPool(taskQueues.rollout, poolHere()),
    priority: priorityHere(rollouts),
    startToCloseTimeout: '10000h',
    heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    retry,
  });

/** The memo of a child that plays in the same pool. */
export function memoOfPoolHere(): { readonly memo?: Record<string, unknown> } {
  const { memo = {} } = workflowInfo();
  const kept = [memoKeys.pool, memoKeys.priority].filter((key) => memo[key] !== undefined);
  return kept.length === 0 ? {} : { memo: Object.fromEntries(kept.map((key) => [key, memo[key]])) };
}

/** The pool that an evaluation or a search plays in, which is in its memo: its run's, or the one that it was started for. */
function poolHere(): string | null {
  const pool = workflowInfo().memo?.[memoKeys.pool];
  return typeof pool === 'string' ? pool : null;
}

/**
 * Of an evaluation, a search or a rescore: it counts for the run that began it, and has the priority of that; one that
 * nobody began counts for itself.
 */
function priorityHere(rollouts: number): RolloutPriority {
  const { workflowId, parent, memo } = workflowInfo();
  const priority = memo?.[memoKeys.priority];
  const of = parent?.workflowId ?? workflowId;
  return rolloutPriority({ of, rollouts, priority: typeof priority === 'number' ? priority : 0 });
}

/** Reads before a run has its settings, with the shortest detection of a dead worker: nothing continues before them. */
export const opening = proxyActivities<Pick<OrchestratorActivities, OpeningActivity>>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '10m',
  heartbeatTimeout: heartbeatTimeoutDefaultS * 1000,
  retry,
});

/** Records of who changed what that a workflow waits for, which goes on without them after this time. */
export const records = proxyActivities<
  Pick<OrchestratorActivities, 'nameChange' | 'recordStart' | 'recordCancel' | 'keepPoolChanges'>
>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '20s',
  scheduleToCloseTimeout: '1m',
  retry,
});

/** The only work of its workflow, which nobody waits for: a store that is away for hours gets its record. */
export const scheduleRecords = proxyActivities<Pick<OrchestratorActivities, 'recordScheduleChange'>>({
  taskQueue: taskQueues.orchestrator,
  startToCloseTimeout: '20s',
  scheduleToCloseTimeout: '1d',
  retry: { ...retry, maximumInterval: '1m' },
});

/** Of a run's own work for rollout workers. `share`: of its pool's, relative to other runs; 1 when missing. */
export function priorityOfRun(
  { queue }: Pick<RunSpec, 'queue'>,
  overrides: Overrides,
  work: { readonly rollouts: number; readonly share?: number },
): RolloutPriority {
  return rolloutPriority({ of: workflowInfo().workflowId, priority: queuePriorityOf(queue, overrides), ...work });
}

/** `priority`: absent in what a run of an earlier version handed over. */
export function rolloutsFor(spec: Pick<RunSpec, 'heartbeatTimeoutS' | 'queue'>, priority: RolloutPriority | undefined) {
  return proxyActivities<RolloutActivities>({
    taskQueue: queueOfPool(taskQueues.rollout, spec.queue?.pool),
    ...(priority === undefined ? {} : { priority }),
    startToCloseTimeout: '2h',
    heartbeatTimeout: spec.heartbeatTimeoutS * 1000,
    retry,
  });
}

/** A request to a host that may be gone is not awaited once it is cancelled. */
const onHeldHost = (spec: RunSpec) =>
  ({
    cancellationType: ActivityCancellationType.TRY_CANCEL,
    heartbeatTimeout: spec.heartbeatTimeoutS * 1000,
  }) as const;

/**
 * Takes a GPU worker. Never retried by Temporal: each attempt is another epoch, which the workflow decides on. A
 * worker's own queue is tried only for as long as a living worker needs to answer. `isWaitedFor`: a lease that is
 * given back is over when the worker says so.
 */
export function holdingOn(
  spec: RunSpec,
  taskQueue: string,
  { isOwnQueue, isWaitedFor }: { readonly isOwnQueue: boolean; readonly isWaitedFor: boolean },
) {
  return proxyActivities<LeaseActivities>({
    ...onHeldHost(spec),
    ...(isWaitedFor ? { cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED } : {}),
    taskQueue,
    startToCloseTimeout: '10000h',
    ...(isOwnQueue ? { scheduleToStartTimeout: holdAgainMs } : {}),
    retry: { maximumAttempts: 1 },
  });
}

/** Fails at once if this worker does not have the activity: only it polls the queue, so the run must ask another worker. */
const retryWhereKnown = { ...retry, nonRetryableErrorTypes: [notRegisteredType] };

/** On the GPU worker that holds the run: one activity at a time, and one upload beside it. */
export function trainingOn(spec: RunSpec, holder: string) {
  const taskQueue = trainerQueues(holder).steps;
  return proxyActivities<TrainActivities>({
    ...onHeldHost(spec),
    taskQueue,
    startToCloseTimeout: '6h',
    retry: retryWhereKnown,
  });
}

/** A hold that it does not end in time ends with a heartbeat, as its activity is cancelled. */
export function givingBackOn(holder: string): Pick<ReturnType<typeof trainingOn>, 'giveBackTrainer'> {
  return proxyActivities<TrainActivities>({
    taskQueue: trainerQueues(holder).steps,
    startToCloseTimeout: '10s',
    scheduleToCloseTimeout: '10s',
    retry: { maximumAttempts: 1 },
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
