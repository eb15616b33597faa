import { type Client, type WorkflowClient, type WorkflowHandle, WorkflowNotFoundError } from '@temporalio/client';
import { optionalTsToMs } from '@temporalio/common/lib/time.js';
import type proto from '@temporalio/proto';
import type { RunOwner } from '../../core/roles.ts';
import { nameIn } from '../../core/rl/changes.ts';
import type { AskedEvent, Execution, HistoryOfChanges } from '../../activities/record-change.ts';
import { listWorkflows } from './list-workflows.ts';

type HistoryEvent = proto.temporal.api.history.v1.IHistoryEvent;

/** Events read at once, from the newest on. An update that was just taken is among the first of them. */
const pageEvents = 50;
/** A history has no more events than Temporal's own bound of 51,200. */
const pagesMax = 1_100;
/** Executions of a workflow, the newest first, that are looked at for who ended them. */
const executionsMax = 20;
/** Pages of a history that are read for who cancelled it: its children have ended since then. */
const pagesSinceCancel = 20;
/** A person cancels an evaluation by the workflow of its file, whose parent may be one of a schedule. */
const parentsMax = 4;

/** Reads from Temporal's histories who asked for what. `client`: that of the current connection. */
export function historyOfChanges(client: () => Client): HistoryOfChanges {
  return {
    update: (execution, id) => updateIn(client(), execution, id),
    around: (execution) => around(client(), execution),
    cancelled: (execution) => cancelledBy(client(), execution),
  };
}

async function updateIn(client: Client, execution: Execution, id: string): Promise<AskedEvent | null> {
  for await (const event of newestFirst(client, execution)) {
    // After a reset an update is admitted anew, and accepted without its request.
    const admitted = event.workflowExecutionUpdateAdmittedEventAttributes?.request;
    const meta = (event.workflowExecutionUpdateAcceptedEventAttributes?.acceptedRequest ?? admitted)?.meta;
    if (meta?.updateId === id) return askedIn(event, meta.identity);
  }
  return null;
}

async function around(client: Client, here: Execution) {
  const began = await startOf(client, here);
  const found = began === null ? [] : [{ ...began, ...here, what: 'start', asked: '', id: 'start' }];
  const query = `WorkflowId = '${here.workflow}' AND ExecutionStatus IN ('Canceled', 'Terminated')`;
  let looked = 0;
  for await (const { runId } of listWorkflows(client, query, executionsMax)) {
    if (looked++ === executionsMax) break;
    if (runId !== here.execution) found.push(...(await endOf(client, { ...here, execution: runId })));
  }
  return found;
}

/** Who started the first execution of a sweep or a search, which has no folder that says so; null where that is over. */
export async function starterOf(handle: WorkflowHandle): Promise<RunOwner | null> {
  const { raw, runId } = await handle.describe();
  const execution = raw.workflowExecutionInfo?.firstRunId || runId;
  const { client, workflowId: workflow } = handle;
  const began = await orGone(startOf(client, { workflow, execution }));
  return began === null || began.identity === '' ? null : { who: nameIn(began.identity), team: null };
}

/** Who started an execution: a person, or whoever started the workflow whose child it is. */
async function startOf(
  client: Pick<WorkflowClient, 'workflowService'> & { readonly options: { readonly namespace: string } },
  { workflow, execution }: Execution,
): Promise<AskedEvent | null> {
  const { history } = await client.workflowService.getWorkflowExecutionHistory({
    namespace: client.options.namespace,
    execution: { workflowId: workflow, runId: execution },
    maximumPageSize: 1,
  });
  const [event] = history?.events ?? [];
  const started = event?.workflowExecutionStartedEventAttributes;
  if (!event || !started) return null;
  const here = askedIn(event, started.identity);
  const { firstExecutionRunId: first } = started;
  if (first && first !== execution) return orGone(startOf(client, { workflow, execution: first })); // it continued as new
  const { workflowId, runId } = started.parentWorkflowExecution ?? {};
  if (!workflowId || !runId) return here;
  const parent = await orGone(startOf(client, { workflow: workflowId, execution: runId }));
  return parent && { ...here, identity: parent.identity, principal: parent.principal };
}

/** Who cancelled an execution, or that of a parent which cancelled this one; null where no person did. */
async function cancelledBy(client: Client, execution: Execution, parents = parentsMax): Promise<AskedEvent | null> {
  for await (const event of newestFirst(client, execution, pagesSinceCancel)) {
    const cancelled = event.workflowExecutionCancelRequestedEventAttributes;
    if (!cancelled) continue;
    const { workflowId, runId } = cancelled.externalWorkflowExecution ?? {};
    if (!workflowId) return askedIn(event, cancelled.identity);
    if (parents === 0) return null;
    return orGone(cancelledBy(client, { workflow: workflowId, execution: runId ?? '' }, parents - 1));
  }
  return null;
}

/** The newest events of an execution that is over: the cancellation, or the termination, and who asked for it. */
async function endOf(client: Client, execution: Execution) {
  const read = async () => {
    for await (const event of newestFirst(client, execution, 1)) {
      const cancelled = event.workflowExecutionCancelRequestedEventAttributes;
      if (cancelled)
        return [{ ...askedIn(event, cancelled.identity), ...execution, what: 'cancel', asked: '', id: 'cancel' }];
      const terminated = event.workflowExecutionTerminatedEventAttributes;
      if (terminated) {
        const asked = terminated.reason ?? '';
        return [{ ...askedIn(event, terminated.identity), ...execution, what: 'terminate', asked, id: 'terminate' }];
      }
    }
    return [];
  };
  return (await orGone(read())) ?? [];
}

async function* newestFirst(client: Client, { workflow, execution }: Execution, pages = pagesMax) {
  let nextPageToken: Uint8Array | null | undefined;
  for (let page = 0; page < pages; page++) {
    const answer = await client.workflowService.getWorkflowExecutionHistoryReverse({
      namespace: client.options.namespace,
      execution: { workflowId: workflow, runId: execution },
      maximumPageSize: pageEvents,
      ...(nextPageToken ? { nextPageToken } : {}),
    });
    yield* answer.history?.events ?? [];
    ({ nextPageToken } = answer);
    if (!nextPageToken || nextPageToken.length === 0) return;
  }
}

function askedIn(event: HistoryEvent, identity: string | null | undefined): AskedEvent {
  const { type, name } = event.principal ?? {};
  return {
    time: new Date(optionalTsToMs(event.eventTime) ?? 0).toISOString(),
    identity: identity ?? '',
    principal: name ? `${type ?? ''}:${name}` : null,
  };
}

/** null where retention has removed the history. */
async function orGone<T>(reading: Promise<T>): Promise<T | null> {
  try {
    return await reading;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError || isNotFound(error)) return null;
    throw error;
  }
}

/** gRPC's code for what is not there. */
const notFound = 5;

function isNotFound(error: unknown): boolean {
  return error instanceof Error && (error as { readonly code?: unknown }).code === notFound;
}
