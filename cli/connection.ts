import {
  Client,
  Connection,
  defaultGrpcRetryOptions,
  makeGrpcRetryInterceptor,
  type WorkflowHandle,
  WorkflowNotFoundError,
} from '@temporalio/client';
import proto from '@temporalio/proto';
import { RatchetError } from '../core/errors.ts';
import { runNamePattern, taskQueues } from '../core/names.ts';
import { readRunningStack } from '../workers/project-lock.ts';
import { rootMessage } from './root-message.ts';

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

/** About a second of asking again; the usual ten attempts are 20 s in which nobody can interrupt a call. */
const callAttemptsMax = 4;

export async function connect({
  address,
  namespace,
}: TemporalPlace): Promise<{ client: Client; close: () => Promise<void> }> {
  try {
    const connection = await Connection.connect({
      address,
      connectTimeout: '10s',
      interceptors: [makeGrpcRetryInterceptor(defaultGrpcRetryOptions({ maxAttempts: callAttemptsMax }))],
    });
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
 * The workflow of a run, preferably one that is running. Its id is the run's name, unless the run was started by hand under
 * another id: then it is found by its search attribute.
 */
export async function findRun(client: Client, run: string): Promise<WorkflowHandle> {
  const running = await findRunning(client, run);
  if (running) return running;
  const handle = client.workflow.getHandle(run);
  if ((await statusOf(handle)) !== null) return handle;
  const closed = await findByAttribute(client, run, '');
  if (closed) return closed;
  throw new RatchetError(
    'RunNotFound',
    `There is no run ${run} on this Temporal server. \`ratchet status\` lists those there are.`,
  );
}

/** The workflow that works on a run right now, whatever its id; null when there is none. */
export async function findRunning(client: Client, run: string): Promise<WorkflowHandle | null> {
  const handle = client.workflow.getHandle(run);
  if ((await statusOf(handle)) === 'RUNNING') return handle;
  const found = await findByAttribute(client, run, "AND ExecutionStatus='Running'");
  // What is listed lags a little behind what is.
  return found && (await statusOf(found)) === 'RUNNING' ? found : null;
}

/** The settings that a running workflow was given on the command line; null when that cannot be told any more. */
export async function startedWith({ client, workflowId }: WorkflowHandle): Promise<unknown> {
  const { namespace } = client.options;
  const { history } = await client.workflowService.getWorkflowExecutionHistory({
    namespace,
    execution: { workflowId },
    maximumPageSize: 1,
  });
  const data = history?.events?.[0]?.workflowExecutionStartedEventAttributes?.input?.payloads?.[0]?.data;
  if (!data) return null;
  const input = JSON.parse(Buffer.from(data).toString()) as string | { overrides?: Record<string, string> };
  return typeof input === 'string' ? {} : (input.overrides ?? null);
}

async function findByAttribute(client: Client, run: string, and: string): Promise<WorkflowHandle | null> {
  if (!runNamePattern.test(run)) return null;
  const query = `WorkflowType='trainRun' AND RatchetRun='${run}' ${and}`;
  try {
    for await (const { workflowId } of client.workflow.list({ query, pageSize: 1 }))
      return client.workflow.getHandle(workflowId);
  } catch (error) {
    // A server elsewhere on which nobody registered the attribute: its runs are found by their ids alone.
    if (!(error instanceof Error && /search attribute|RatchetRun/i.test(rootMessage(error)))) throw error;
  }
  return null;
}

/** Null when there is no such workflow. */
async function statusOf(handle: WorkflowHandle): Promise<string | null> {
  try {
    return (await handle.describe()).status.name;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}
