import type { Client, WorkflowExecutionDescription } from '@temporalio/client';
import type { RolloutActivities } from '../../activities/index.ts';
import { describeWorkflow, listWorkflows } from './list-workflows.ts';

/** Questions to Temporal at once. */
const atOnce = 8;
/** temporal.api.enums.v1.PendingActivityState */
const startedState = 2;

type RawActivity = NonNullable<WorkflowExecutionDescription['raw']['pendingActivities']>[number];

/** An activity of an open workflow, as Temporal knows it now. */
export interface PendingActivity {
  readonly workflowId: string;
  readonly runId: string;
  readonly activityId: string;
  readonly name: string;
  /** Whether a worker has it; otherwise it waits for one. */
  readonly isRunning: boolean;
  /** Identity of the worker that has it or had it last; '' if none had. */
  readonly worker: string;
}

/** Activities that rollout workers are asked for. */
export const rolloutActivities: ReadonlySet<string> = new Set(
  Object.keys({
    playGroups: true,
    askTeacher: true,
    drawRows: true,
    evaluateChunk: true,
    rescoreChunk: true,
    answerSearch: true,
  } satisfies Record<keyof RolloutActivities, true>),
);

/** Lists those of at most `workflowsMax` open workflows of the namespace. A workflow that was just started may be missing. */
export async function allPendingActivities(
  client: Pick<Client, 'connection' | 'options'>,
  workflowsMax: number,
): Promise<PendingActivity[]> {
  const open: string[] = [];
  for await (const { workflowId } of listWorkflows(client, "ExecutionStatus='Running'"))
    if (open.push(workflowId) >= workflowsMax) break;
  const found: PendingActivity[] = [];
  const look = async (workflowId: string): Promise<void> => {
    const { raw, runId } = await describeWorkflow(client, workflowId);
    found.push(...(raw.pendingActivities ?? []).map((activity) => ({ workflowId, runId, ...readActivity(activity) })));
  };
  for (let from = 0; from < open.length; from += atOnce)
    await Promise.all(open.slice(from, from + atOnce).map((id) => look(id).catch(onlyWhenGone)));
  return found;
}

/** An activity as the server describes it. */
export function readActivity({
  activityId,
  activityType,
  state,
  lastWorkerIdentity,
}: RawActivity): Omit<PendingActivity, 'workflowId' | 'runId'> {
  return {
    activityId: activityId ?? '',
    name: activityType?.name ?? '',
    isRunning: Number(state) === startedState,
    worker: lastWorkerIdentity ?? '',
  };
}

/** A workflow may have been removed since it was listed. */
function onlyWhenGone(error: unknown): void {
  if (!(error instanceof Error && error.name === 'WorkflowNotFoundError')) throw error;
}
