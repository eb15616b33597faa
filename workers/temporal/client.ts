import { setTimeout as delay } from 'node:timers/promises';
import {
  Client,
  defaultGrpcRetryOptions,
  makeGrpcRetryInterceptor,
  type WorkflowHandle,
  WorkflowNotFoundError,
} from '@temporalio/client';
import proto from '@temporalio/proto';
import { RatchetError } from '../../core/errors.ts';
import type { Person } from '../../core/roles.ts';
import { runNamePattern, taskQueues } from '../../core/names.ts';
import { dataConverterFor, readPayloadKeys } from './payload-codec.ts';
import { readRunningStack, type RunningStack } from '../stack/project-lock.ts';
import { connectClient } from './client-connection.ts';
import { listWorkflows } from './list-workflows.ts';
import { notConnected } from './temporal-connection.ts';
import { localTemporal, remoteTemporal, type TemporalSettings } from './temporal-settings.ts';
import { rootMessage } from './root-message.ts';
import { identityHere } from './who-may.ts';

/** Address of Temporal: TEMPORAL_ADDRESS, else the stack of this folder; null without either. */
export async function temporalHere(projectFolder: string): Promise<TemporalSettings | null> {
  const given = process.env['TEMPORAL_ADDRESS'];
  if (given) return remoteTemporal(given);
  const running = await readRunningStack(projectFolder);
  return running?.temporalAddress ? temporalOf(running, running.temporalAddress) : null;
}

/** The same, but throws without a server. */
export async function findTemporal(projectFolder: string): Promise<TemporalSettings> {
  const found = await temporalHere(projectFolder);
  if (found) return found;
  const running = await readRunningStack(projectFolder);
  if (running) {
    throw new RatchetError(
      'ServerUnavailable',
      `The processes of ${projectFolder} (process ${running.pid}) are ${running.state === 'starting' ? 'being started' : running.state}: there is no Temporal server to ask yet. Type this again when they are ready.`,
    );
  }
  throw new RatchetError(
    'ServerUnavailable',
    `Nothing of Ratchet runs in ${projectFolder}. Start it with \`npx ratchet-rl dev\` or \`npx ratchet-rl train FILE\`, or set TEMPORAL_ADDRESS to a server elsewhere.`,
  );
}

/** How the server of a stack is reached. One that is not the stack's own has no UI address. */
export function temporalOf({ uiUrl }: Pick<RunningStack, 'uiUrl'>, address: string): TemporalSettings {
  return uiUrl === null ? remoteTemporal(address) : localTemporal(address);
}

/** About a second of retries; the default ten attempts take 20 s, in which a call cannot be interrupted. */
const callAttemptsMax = 4;
/** Most milliseconds by which a timer fires late. */
const timerLagMs = 20;

/** Connects as whoever runs this process, or `as` somebody whose key it has checked. */
export async function connect(
  settings: TemporalSettings,
  as?: Person,
): Promise<{ client: Client; close: () => Promise<void> }> {
  const { namespace } = settings;
  const identity = await identityHere(as);
  const dataConverter = dataConverterFor(readPayloadKeys());
  const retries = callRetries();
  try {
    const connection = await connectClient(settings, { connectTimeout: '10s', interceptors: [retries.interceptor] });
    return {
      client: new Client({ connection, namespace, dataConverter, identity }),
      close: async () => {
        await retries.end();
        await connection.close();
      },
    };
  } catch (cause) {
    throw await notConnected(settings, cause);
  }
}

/**
 * Retries of calls. The SDK's timer for the next attempt throws an uncatchable error once the connection is closed;
 * `end` lets it fire first.
 */
function callRetries(): { interceptor: ReturnType<typeof makeGrpcRetryInterceptor>; end: () => Promise<void> } {
  const defaults = defaultGrpcRetryOptions({ maxAttempts: callAttemptsMax });
  let hasEnded = false;
  let nextAt = 0;
  return {
    interceptor: makeGrpcRetryInterceptor({
      retryableDecider: (attempt, status) => !hasEnded && defaults.retryableDecider(attempt, status),
      delayFunction: (attempt, status) => {
        const delayMs = defaults.delayFunction(attempt, status);
        nextAt = Math.max(nextAt, Date.now() + delayMs);
        return delayMs;
      },
    }),
    async end() {
      hasEnded = true;
      const waitMs = nextAt - Date.now();
      if (waitMs > -timerLagMs) await delay(waitMs + timerLagMs);
    },
  };
}

/** Whether a worker polls the orchestrators' queue of this server. */
export async function hasWorkers(settings: TemporalSettings): Promise<boolean> {
  const { client, close } = await connect(settings);
  const { namespace } = settings;
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
  if ((await statusOfRun(handle)) !== null) return handle;
  const closed = await findByAttribute(client, run, '');
  if (closed) return closed;
  throw new RatchetError(
    'RunNotFound',
    `There is no run ${run} on this Temporal server. \`npx ratchet-rl status\` lists those there are.`,
  );
}

/** Workflow that works on a run now, under any id; null without one. */
export async function findRunning(client: Client, run: string): Promise<WorkflowHandle | null> {
  const handle = client.workflow.getHandle(run);
  if ((await statusOfRun(handle)) === 'RUNNING') return handle;
  const found = await findByAttribute(client, run, "AND ExecutionStatus='Running'");
  // The list lags a little behind the workflows' real states.
  return found && (await statusOfRun(found)) === 'RUNNING' ? found : null;
}

async function findByAttribute(client: Client, run: string, and: string): Promise<WorkflowHandle | null> {
  if (!runNamePattern.test(run)) return null;
  const query = `WorkflowType='trainRun' AND RatchetRun='${run}' ${and}`;
  try {
    for await (const { workflowId } of listWorkflows(client, query, 1)) return client.workflow.getHandle(workflowId);
  } catch (error) {
    // A server without the search attribute: its runs are found by their ids only.
    if (!(error instanceof Error && /search attribute|RatchetRun/i.test(rootMessage(error)))) throw error;
  }
  return null;
}

/** Null when there is no such workflow. Throws where another one is open under the id: a pool, or of another program. */
async function statusOfRun(handle: WorkflowHandle): Promise<string | null> {
  try {
    const { type, status } = await handle.describe();
    if (type === 'trainRun') return status.name;
    if (status.name !== 'RUNNING') return null;
    throw new RatchetError(
      'RunNotFound',
      `${handle.workflowId} is no run: on this Temporal server a workflow of the type ${type} is open under this id. \`npx ratchet-rl status\` lists the runs.`,
    );
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return null;
    throw error;
  }
}
