import { type Client, type WorkflowExecutionDescription, WorkflowNotFoundError } from '@temporalio/client';

/**
 * Ends an execution whose history was written by other workflow code: it is asked for by its run id, so one that has
 * begun since under the same id is never ended. No orchestrator may be there that could cancel it.
 */
export async function endIfOther(
  client: Client,
  { workflowId, runId }: { readonly workflowId: string; readonly runId: string },
  {
    version,
    versionOf,
  }: {
    readonly version: string;
    /** Version of the code that wrote a history; null before its first task. */
    readonly versionOf: (found: WorkflowExecutionDescription) => string | null;
  },
): Promise<void> {
  const handle = client.workflow.getHandle(workflowId, runId);
  try {
    const found = await handle.describe();
    const written = versionOf(found);
    if (written === null || written === version || found.status.name !== 'RUNNING') return;
    await handle.terminate('taken over by other workflow code');
  } catch (error) {
    if (!(error instanceof WorkflowNotFoundError)) throw error; // it ended meanwhile
  }
}
