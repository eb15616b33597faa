import type { Client } from '@temporalio/client';
import { WorkflowNotFoundError } from '@temporalio/common';
import { poolWorkflowId, taskQueues } from '../../core/names.ts';

/** Signals the workflow of a pool, which begins with the first signal. */
export async function tellPool(
  client: { readonly workflow: Pick<Client['workflow'], 'signalWithStart'> },
  pool: string,
  signal: string,
  standing: object,
): Promise<void> {
  await client.workflow.signalWithStart('pool', {
    workflowId: poolWorkflowId(pool),
    taskQueue: taskQueues.orchestrator,
    args: [{ name: pool }],
    signal,
    signalArgs: [standing],
    staticSummary: `the trainers of the pool ${pool}`,
  });
}

/** The answer of a pool's workflow; null where there is none that is open: one that has ended would still answer. */
export async function askOpenPool<Answer, Args extends unknown[]>(
  client: { readonly workflow: Pick<Client['workflow'], 'getHandle'> },
  pool: string,
  query: string,
  ...args: Args
): Promise<Answer | null> {
  const handle = client.workflow.getHandle(poolWorkflowId(pool));
  try {
    if ((await handle.describe()).status.name !== 'RUNNING') return null;
    return await handle.query<Answer | null, Args>(query, ...args);
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}
