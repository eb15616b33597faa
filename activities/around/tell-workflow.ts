import { AsyncLocalStorage } from 'node:async_hooks';
import { Context } from '@temporalio/activity';
import type { Client } from '@temporalio/client';

/** Context in which sends are not cut off when their activity is cancelled. */
export const outsideOfActivities = AsyncLocalStorage.snapshot();

/** Signals the workflow that scheduled the activity. */
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
