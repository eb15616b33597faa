import type { Client, WorkflowExecutionDescription } from '@temporalio/client';
import { decodeArrayFromPayloads } from '@temporalio/common/lib/internal-non-workflow/index.js';

/** What goes on from the store alone when it is started again. */
const types = ['evaluate', 'optimizePrompt'] as const;

/**
 * Starts open evaluations and searches for prompts anew whose history was written by other workflow code, under the same id and with the same input: what they
 * finished lies in the store, and is adopted. Those of a file are left to the workflow of their file.
 */
export async function takeOverEvaluations(
  client: Client,
  version: string,
  versionOf: (found: WorkflowExecutionDescription) => string | null,
): Promise<string[]> {
  const taken: string[] = [];
  for (const type of types) taken.push(...(await takeOverType(client, type, { version, versionOf })));
  return taken;
}

async function takeOverType(
  client: Client,
  type: (typeof types)[number],
  own: {
    readonly version: string;
    readonly versionOf: (found: WorkflowExecutionDescription) => string | null;
  },
): Promise<string[]> {
  const { version, versionOf } = own;
  const query = `WorkflowType='${type}' AND ExecutionStatus='Running'`;
  const listed: string[] = [];
  for await (const { workflowId } of client.workflow.list({ query })) listed.push(workflowId);
  const taken: string[] = [];
  for (const workflowId of listed) {
    const found = await client.workflow.getHandle(workflowId).describe();
    const written = versionOf(found);
    const parent = found.raw.workflowExecutionInfo?.parentExecution?.workflowId ?? '';
    const isOurs = written === null || written === version || found.status.name !== 'RUNNING';
    if (isOurs || listed.includes(parent)) continue;
    const summary = await found.staticSummary();
    await client.workflow.start(type, {
      workflowId,
      taskQueue: found.taskQueue,
      args: await inputOf(client, workflowId, found.runId),
      // In one call: there is no moment at which it is gone.
      workflowIdConflictPolicy: 'TERMINATE_EXISTING',
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      workflowTaskTimeout: '5s',
      ...(summary === undefined ? {} : { staticSummary: summary }),
    });
    taken.push(workflowId);
  }
  return taken;
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
