import type { Client, WorkflowExecutionDescription } from '@temporalio/client';

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

/** Lists those of at most `workflowsMax` open workflows. A workflow that was just started may be missing. */
export async function pendingActivities(
  client: Pick<Client, 'workflow'>,
  workflowsMax: number,
): Promise<PendingActivity[]> {
  const open: string[] = [];
  for await (const { workflowId } of client.workflow.list({ query: "ExecutionStatus='Running'" }))
    if (open.push(workflowId) >= workflowsMax) break;
  const found: PendingActivity[] = [];
  const look = async (workflowId: string): Promise<void> => {
    const { raw, runId } = await client.workflow.getHandle(workflowId).describe();
    found.push(...(raw.pendingActivities ?? []).map((activity) => ({ workflowId, runId, ...readActivity(activity) })));
  };
  for (let from = 0; from < open.length; from += atOnce)
    await Promise.all(open.slice(from, from + atOnce).map((id) => look(id).catch(onlyWhenGone)));
  return found;
}

function readActivity({
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
