import type { WorkflowHandle } from '@temporalio/client';
import {
  decodeArrayFromPayloads,
  decodeOptionalFailureToOptionalError,
} from '@temporalio/common/lib/internal-non-workflow/index.js';
import { ApplicationFailure } from '@temporalio/common';
import type { WorkProgress } from '../../activities/around/work-under-way.ts';
import { passedOnType } from '../../core/names.ts';
import { namingTheWorker } from '../../workers/stack/other-versions.ts';

/** An activity under way, as the server knows it without any worker. */
export interface PendingActivity {
  readonly name: string;
  /** Counts from 1. */
  readonly attempt: number;
  /** ISO time of the next attempt; null while it runs, or when its time has come. */
  readonly nextAt: string | null;
  /** Failure of the previous attempt; null in a first attempt, or when its worker went away. */
  readonly lastFailure: string | null;
  /** Whether the previous attempt only left it to a worker with room for it. */
  readonly isPassedOn?: boolean;
  /** Rollouts finished according to its heartbeat; null without that. */
  readonly done: number | null;
  /** The wait named in its heartbeat; null without one. */
  readonly waitsFor?: string | null;
  /** Details of its newest heartbeat. */
  readonly said?: unknown;
}

/** Work under way in a workflow, known to the server without any worker. */
interface PendingWork {
  readonly activities: readonly PendingActivity[];
  /** Ids of evaluations that it began and that have not ended. */
  readonly evaluations: readonly string[];
}

/** null when the server does not answer. */
export async function pendingActivities(
  handle: WorkflowHandle,
  timeoutMs: number,
): Promise<readonly PendingActivity[] | null> {
  return (await pendingWork(handle, timeoutMs))?.activities ?? null;
}

/** null when the server does not answer. */
export async function pendingWork(handle: WorkflowHandle, timeoutMs: number): Promise<PendingWork | null> {
  const converter = handle.client.options.loadedDataConverter;
  try {
    const { raw } = await handle.client.withDeadline(Date.now() + timeoutMs, () => handle.describe());
    const flows = (raw.pendingChildren ?? []).flatMap(({ workflowTypeName, workflowId }) =>
      workflowTypeName === 'playRounds' && workflowId ? [handle.client.getHandle(workflowId)] : [],
    );
    const played = await Promise.all(flows.map((flow) => pendingActivities(flow, timeoutMs)));
    const own = await Promise.all(
      (raw.pendingActivities ?? []).map(
        async ({ activityType, attempt, lastFailure, lastWorkerIdentity, heartbeatDetails, scheduledTime }) => {
          const failure = await decodeOptionalFailureToOptionalError(converter, lastFailure);
          const [said] = await decodeArrayFromPayloads(converter, heartbeatDetails?.payloads);
          const nextMs = Number(scheduledTime?.seconds ?? 0) * 1000;
          return {
            name: activityType?.name ?? 'an activity',
            attempt: attempt ?? 1,
            nextAt: nextMs > Date.now() ? new Date(nextMs).toISOString() : null,
            lastFailure: failure ? namingTheWorker(failure.message, lastWorkerIdentity) : null,
            isPassedOn: failure instanceof ApplicationFailure && failure.type === passedOnType,
            done: doneIn(said),
            waitsFor: waitIn(said),
            said,
          };
        },
      ),
    );
    const evaluations = (raw.pendingChildren ?? []).flatMap(({ workflowTypeName, workflowId }) =>
      workflowTypeName === 'evaluate' && workflowId ? [workflowId] : [],
    );
    return { activities: [...own, ...played.flatMap((found) => found ?? [])], evaluations };
  } catch {
    return null; // A server that is being restarted, or gone: asked again at the next look.
  }
}

/** Generation's heartbeats carry its work, scoring's are its work. */
function doneIn(said: unknown): number | null {
  const { work, done } = (said ?? {}) as { readonly work?: Partial<WorkProgress>; readonly done?: unknown };
  const found = work?.done ?? done;
  return typeof found === 'number' ? found : null;
}

function waitIn(said: unknown): string | null {
  const { waitsFor } = (said ?? {}) as { readonly waitsFor?: unknown };
  return typeof waitsFor === 'string' ? waitsFor : null;
}
