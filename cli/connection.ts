import { Client, Connection, type WorkflowHandle, WorkflowNotFoundError } from '@temporalio/client';
import proto from '@temporalio/proto';
import { RatchetError } from '../core/errors.ts';
import { runNamePattern, taskQueues } from '../core/names.ts';
import { readRunningStack } from '../workers/project-lock.ts';

export interface TemporalPlace {
  readonly address: string;
  readonly namespace: string;
}

/** Where Temporal is: TEMPORAL_ADDRESS, else what runs in this folder. */
export async function findTemporal(projectFolder: string): Promise<TemporalPlace> {
  const namespace = process.env['TEMPORAL_NAMESPACE'] ?? 'default';
  const given = process.env['TEMPORAL_ADDRESS'];
  if (given) return { address: given, namespace };
  const running = await readRunningStack(projectFolder);
  if (running?.temporalAddress) return { address: running.temporalAddress, namespace };
  throw new RatchetError(
    'ServerUnavailable',
    `Nothing of Ratchet runs in ${projectFolder}. Start it with \`ratchet dev\` or \`ratchet train FILE\`, or set TEMPORAL_ADDRESS to a server elsewhere.`,
  );
}

export async function connect({
  address,
  namespace,
}: TemporalPlace): Promise<{ client: Client; close: () => Promise<void> }> {
  try {
    const connection = await Connection.connect({ address, connectTimeout: '10s' });
    return {
      client: new Client({ connection, namespace, identity: `ratchet ${process.pid}` }),
      close: () => connection.close(),
    };
  } catch (cause) {
    throw new RatchetError(
      'ServerUnavailable',
      `No Temporal server answers at ${address}. Is it running, and is TEMPORAL_ADDRESS right?`,
      { cause },
    );
  }
}

/** Whether somebody works on the orchestrators' queue of this server. */
export async function hasWorkers(address: string): Promise<boolean> {
  const namespace = process.env['TEMPORAL_NAMESPACE'] ?? 'default';
  const { client, close } = await connect({ address, namespace });
  try {
    const { pollers } = await client.workflowService.describeTaskQueue({
      namespace,
      taskQueue: { name: taskQueues.orchestrator },
      taskQueueType: proto.temporal.api.enums.v1.TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    });
    return (pollers ?? []).length > 0;
  } finally {
    await close();
  }
}

/**
 * The workflow of a run. Its id is the run's name, unless the run was started by hand under another id: then it is found by
 * its search attribute.
 */
export async function findRun(client: Client, run: string): Promise<WorkflowHandle> {
  const handle = client.workflow.getHandle(run);
  if (await exists(handle)) return handle;
  if (runNamePattern.test(run)) {
    const query = `WorkflowType='trainRun' AND RatchetRun='${run}'`;
    for await (const { workflowId } of client.workflow.list({ query, pageSize: 1 }))
      return client.workflow.getHandle(workflowId);
  }
  throw new RatchetError(
    'RunNotFound',
    `There is no run ${run} on this Temporal server. \`ratchet status\` lists those there are.`,
  );
}

async function exists(handle: WorkflowHandle): Promise<boolean> {
  try {
    await handle.describe();
    return true;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false;
    throw error;
  }
}
