import type { Client, WorkflowExecutionDescription } from '@temporalio/client';
import { decodeArrayFromPayloads } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { beginAnew } from './begin-anew.ts';
import { endIfOther } from './end-if-other.ts';
import { type ListedWorkflow, listWorkflows } from '../temporal/list-workflows.ts';

/** Workflows that continue from the store alone after a restart. */
export const evaluationTypes = ['evaluateNewest', 'evaluate', 'optimizePrompt', 'rescore', 'sweep', 'sweepSandboxes'];

interface TakeOverEvaluations {
  /** Version of this process's workflow code. */
  readonly version: string;
  /** Version of the code that wrote a history; null before its first task. */
  readonly versionOf: (found: WorkflowExecutionDescription) => string | null;
  /** Called for each that cannot be taken over; the others are still taken over. */
  readonly failed: (workflowId: string, reason: unknown) => void;
  /** Whether this execution is looked at; all are when missing. */
  readonly isWanted?: (execution: Open) => boolean;
}

type Open = Pick<ListedWorkflow, 'workflowId' | 'runId' | 'parentExecution'>;

/**
 * Restarts open evaluations, prompt searches and rescores whose history was written by other workflow code, under the same id and
 * with the same input: their finished results are in the store and are adopted. Those of a file or a schedule are begun
 * by their parent workflow: once that is restarted, the executions of other code end, and it begins them again. What is
 * cut off in between is done by the next call. Returns the ids.
 */
export async function takeOverEvaluations(client: Client, options: TakeOverEvaluations): Promise<string[]> {
  const { isWanted = () => true } = options;
  const open: Open[] = [];
  const query = `WorkflowType IN (${evaluationTypes.map((type) => `'${type}'`).join(', ')}) AND ExecutionStatus='Running'`;
  for await (const one of listWorkflows(client, query)) open.push(one);
  const taken: string[] = [];
  for (const one of open) {
    if (!isWanted(one) || open.some(({ workflowId }) => workflowId === one.parentExecution?.workflowId)) continue;
    try {
      if (await takeOver(client, one, options)) taken.push(one.workflowId);
    } catch (error) {
      options.failed(one.workflowId, error);
      continue; // its parts go on with it
    }
    // Not before: an orchestrator of the other version would see its part end, and fail.
    for (const part of partsOf(one.workflowId, open).filter(isWanted)) {
      await endIfOther(client, part, options).catch((error: unknown) => options.failed(part.workflowId, error));
    }
  }
  return taken;
}

async function takeOver(
  client: Client,
  { workflowId }: Open,
  { version, versionOf }: TakeOverEvaluations,
): Promise<boolean> {
  const found = await client.workflow.getHandle(workflowId).describe();
  const written = versionOf(found);
  if (written === null || written === version || found.status.name !== 'RUNNING') return false;
  await beginAnew(client, found, await inputOf(client, workflowId, found.runId), { workflowTaskTimeout: '5s' });
  return true;
}

/** The children, recursively, each before its own. */
function partsOf(workflowId: string, open: readonly Open[]): Open[] {
  const own = open.filter(({ parentExecution: parent }) => parent?.workflowId === workflowId);
  return own.flatMap((part) => [part, ...partsOf(part.workflowId, open)]);
}

async function inputOf(client: Client, workflowId: string, runId: string): Promise<unknown[]> {
  const { history } = await client.workflowService.getWorkflowExecutionHistory({
    namespace: client.options.namespace,
    execution: { workflowId, runId },
    maximumPageSize: 1,
  });
  const payloads = history?.events?.[0]?.workflowExecutionStartedEventAttributes?.input?.payloads ?? [];
  return decodeArrayFromPayloads(client.options.loadedDataConverter, payloads);
}
