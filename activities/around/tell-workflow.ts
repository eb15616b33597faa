import { AsyncLocalStorage } from 'node:async_hooks';
import { Context } from '@temporalio/activity';
import type { Client } from '@temporalio/client';

/** What an activity has sent is not cut off when it is cancelled meanwhile. */
export const outsideOfActivities = AsyncLocalStorage.snapshot();

/** Tells the workflow that asked for the activity. */
export async function tellWorkflow(signalName: string, ...args: readonly unknown[]): Promise<void> {
  const { client, info } = Context.current();
  const { workflowExecution } = info;
  if (workflowExecution) await signalTo(client, workflowExecution.workflowId, signalName, ...args);
}

export async function signalTo(
  client: Client,
  workflowId: string,
  signalName: string,
  ...args: readonly unknown[]
): Promise<void> {
  await outsideOfActivities(() => client.workflow.getHandle(workflowId).signal(signalName, ...args));
}
