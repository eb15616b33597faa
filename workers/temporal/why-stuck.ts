import type { WorkflowClient, WorkflowExecutionDescription, WorkflowHandle } from '@temporalio/client';
import { decodeOptionalFailureToOptionalError } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import proto from '@temporalio/proto';
import { taskQueues } from '../../core/names.ts';
import { codeDigest } from '../program/code-version.ts';
import { versionOf } from '../stack/take-over.ts';
import { workerIn, workerName } from '../roles/worker-identity.ts';

const { PendingWorkflowTaskState, TaskQueueType, WorkflowTaskFailedCause, WorkerVersioningMode } =
  proto.temporal.api.enums.v1;

/**
 * How the server refuses what a workflow asks for that numbers its timers or activities otherwise than its history: such a replay ends well
 * where only a timer's number differs, and then the workflow cancels a timer that was never begun.
 */
const otherNumbers: readonly unknown[] = [
  WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
  WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_BAD_CANCEL_TIMER_ATTRIBUTES,
  WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_START_TIMER_DUPLICATE_ID,
  WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_SCHEDULE_ACTIVITY_DUPLICATE_ID,
];
/** Number of newest events searched for the reason. */
const lastEvents = 20;
const shownChars = 300;
/** A present worker takes a task at once; a busy one a little later. */
const ignoredAfterMs = 10_000;
/** Characters of a digest that suffice to distinguish two versions. */
const versionChars = 8;

/** Why a run's workflow does not continue, though none of its activities is the cause. */
export interface Stuck {
  /**
   * `wedged`: orchestrators that run fail with its history. `unattended`: it is pinned to a version of which no
   * orchestrator is there, and there are others. `nobody there`: no orchestrator at all.
   */
  readonly is: 'wedged' | 'unattended' | 'nobody there';
  readonly text: string;
}

/** null when nothing is wrong, or it cannot be determined. */
export async function whyStuck(handle: WorkflowHandle, run: string): Promise<Stuck | null> {
  const found = await handle.describe();
  const { pendingWorkflowTask } = found.raw;
  if (found.status.name !== 'RUNNING' || !pendingWorkflowTask) return null;
  const failed = await lastTaskFailure(handle, found.runId);
  if (failed) {
    return { is: 'wedged', text: wedged(run, found, failed, await orchestratorPollers(handle.client)) };
  }
  const pollers = await orchestratorsOf(handle.client, ignoredSinceMs(pendingWorkflowTask));
  const pinned = pinnedTo(found);
  if (pollers.length === 0) return { is: 'nobody there', text: noOrchestrator };
  if (pinned === null || pollers.includes(pinned)) return null;
  return {
    is: 'unattended',
    text: `no orchestrator of its version ${short(pinned)} is there, to which it is pinned (there are: ${pollers.map(short).join(', ')}); \`npx ratchet-rl upgrade ${run}\` moves it to the present version, from its newest commit`,
  };
}

const noOrchestrator =
  'no orchestrator polls for work; start one (npx ratchet-rl dev, or npx ratchet-rl worker --role orchestrator), nothing is lost';

interface Namespaced {
  readonly options: { readonly namespace: string };
}

type PendingWorkflowTask = proto.temporal.api.workflow.v1.IPendingWorkflowTaskInfo;

/** Time at which the task was scheduled that no worker took; 0 when that is too recent to report. */
function ignoredSinceMs({ state, scheduledTime }: PendingWorkflowTask): number {
  const scheduledMs = optionalTsToMs(scheduledTime) ?? 0;
  const isScheduled = state === PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED;
  return isScheduled && Date.now() - scheduledMs > ignoredAfterMs ? scheduledMs : 0;
}

/**
 * Workflow code versions of orchestrators that poll; '' for one without a version. The server lists pollers for minutes
 * after they are gone; `sinceMs`: only those that polled since, as a waiting one would have been given the task.
 */
export async function orchestratorsOf(client: AskedClient, sinceMs = 0): Promise<string[]> {
  return [...new Set((await orchestratorPollers(client, sinceMs)).map(({ version }) => version))];
}

type AskedClient = Pick<WorkflowClient, 'workflowService'> & Namespaced;

export interface Orchestrator {
  /** Its workflow code version; '' without one. */
  readonly version: string;
  readonly identity: string;
  /** Whether it is a version of a worker deployment: runs are pinned to it. */
  readonly isDeployed: boolean;
}

/** The same, each with its process. */
export async function orchestratorPollers(client: AskedClient, sinceMs = 0): Promise<Orchestrator[]> {
  const { pollers } = await client.workflowService.describeTaskQueue({
    namespace: client.options.namespace,
    taskQueue: { name: taskQueues.orchestrator },
    taskQueueType: TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
  });
  const there = (pollers ?? []).filter(({ lastAccessTime }) => (optionalTsToMs(lastAccessTime) ?? 0) >= sinceMs);
  return there.map(({ deploymentOptions, workerVersionCapabilities, identity }) => ({
    version: deploymentOptions?.buildId || workerVersionCapabilities?.buildId || '',
    identity: identity ?? '',
    isDeployed: deploymentOptions?.workerVersioningMode === WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED,
  }));
}

interface TaskFailure {
  readonly isNondeterminism: boolean;
  readonly message: string;
  /** Identity of the worker that had the task. */
  readonly identity: string;
}

/** Failure of its newest workflow task, if none has completed since. */
export async function lastTaskFailure(handle: WorkflowHandle, runId: string): Promise<TaskFailure | null> {
  const { client, workflowId } = handle;
  const { history } = await client.workflowService.getWorkflowExecutionHistoryReverse({
    namespace: client.options.namespace,
    execution: { workflowId, runId },
    maximumPageSize: lastEvents,
  });
  for (const event of history?.events ?? []) {
    if (event.workflowTaskCompletedEventAttributes) return null;
    const failed = event.workflowTaskFailedEventAttributes;
    if (!failed) continue;
    const converter = client.options.loadedDataConverter; // payloads may be encrypted by a codec
    const message = (await decodeOptionalFailureToOptionalError(converter, failed.failure))?.message ?? '';
    const isNondeterminism =
      otherNumbers.includes(failed.cause) || /TMPRL1100|nondetermin|Fatal error in workflow machines/i.test(message);
    return { isNondeterminism, message, identity: failed.identity ?? '' };
  }
  return null;
}

function wedged(
  run: string,
  found: WorkflowExecutionDescription,
  { isNondeterminism, message, identity }: TaskFailure,
  there: readonly Orchestrator[],
): string {
  const worker = workerIn(identity);
  const who = worker === null ? 'the orchestrator' : workerName(worker);
  const said = message.replaceAll(/\s+/g, ' ').slice(0, shownChars);
  if (message.startsWith('Failed to initialize workflow of type'))
    return `${who} does not know this kind of workflow: it is of another version than the client that started the workflow. Restart it with this version (code ${codeDigest()}); nothing is lost (${said})`;
  if (!isNondeterminism)
    return `its workflow code fails on ${who}, and is tried again: ${said}. That is a bug of Ratchet: please report it. With a version that fixes it the run continues by itself; \`npx ratchet-rl stop ${run} --now\` ends it, and train with its file continues from its newest commit`;
  const version = versionOf(found);
  // One that failed and is gone was most likely of the version of those that are there.
  const under = there.find((one) => one.identity === identity)?.version ?? version;
  if (version === under && there.some((one) => one.version === version))
    return `its history cannot be replayed (TMPRL1100, nondeterminism: ${said}). The orchestrators begin it anew from its newest commit, mostly within a minute; nothing committed is lost`;
  const written = version === null ? '' : `, written by version ${short(version)},`;
  return `${who}, which runs, is of another version: it cannot continue with this run's history${written} (TMPRL1100, nondeterminism: ${said}). \`npx ratchet-rl upgrade ${run}\` moves it to the present version, from its newest commit; nothing committed is lost`;
}

function pinnedTo({ raw }: WorkflowExecutionDescription): string | null {
  const { versioningInfo } = raw.workflowExecutionInfo ?? {};
  const isPinned =
    versioningInfo?.behavior === proto.temporal.api.enums.v1.VersioningBehavior.VERSIONING_BEHAVIOR_PINNED;
  return isPinned ? (versioningInfo.deploymentVersion?.buildId ?? null) : null;
}

function short(version: string): string {
  return version === '' ? 'unknown' : version.slice(0, versionChars);
}
