import { Client } from '@temporalio/client';
import { NativeConnection, Worker, type WorkerOptions } from '@temporalio/worker';
import { createOrchestratorActivities, createRolloutActivities } from '../activities/index.ts';
import { ActivityFailpoints } from '../activities/failpoint-interceptor.ts';
import { FailureMapping } from '../activities/failures.ts';
import { RunLog } from '../activities/run-log.ts';
import { openInference } from '../backends/inference/index.ts';
import type { Inference } from '../backends/inference/index.ts';
import { heartbeatThrottleMs } from '../core/limits.ts';
import { taskQueues, type WorkerRole } from '../core/names.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { loadTokenizer } from '../engine/index.ts';
import { codeVersion } from './code-version.ts';
import { findTrainers } from './find-trainers.ts';
import { dataConverterFor, type PayloadKey } from './payload-codec.ts';
import { connectionOptions, notConnected } from './temporal-connection.ts';
import type { TemporalSettings } from './temporal-settings.ts';
import { openTrainerWorkers } from './trainer-workers.ts';
import { takeOverRuns } from './take-over.ts';
import { workflowBundlePath, workflowCodeVersion } from './workflow-bundle.ts';

export interface WorkerSettings {
  readonly role: WorkerRole;
  readonly temporal: TemporalSettings;
  /** The first encrypts what goes into the history, all decrypt; none: it is readable. */
  readonly payloadKeys: readonly PayloadKey[];
  readonly projectFolder: string;
  /** The policy server that a run uses when its config names none. */
  readonly policyUrl: string;
  /** The same of vLLM, '' where none was started; missing = none. */
  readonly vllmUrl?: string;
  /** Set where this is the server's only orchestrator: runs of other workflow code are started anew, and it is told. */
  readonly onTakeOver?: ((line: string) => void) | undefined;
}

/** What a process of one role does until it is told to stop. */
export interface OpenedWorker {
  run(): Promise<void>;
}

/** The worker of one role, connected. The caller runs it; SIGTERM lets what is in flight finish or hand over. */
export async function openWorker(settings: WorkerSettings): Promise<OpenedWorker> {
  const { temporal, payloadKeys } = settings;
  const connection = await connectWorker(temporal);
  const log = new RunLog(settings.role);
  const common: WorkerOptions = {
    connection,
    namespace: temporal.namespace,
    dataConverter: dataConverterFor(payloadKeys),
    taskQueue: taskQueues[settings.role],
    identity: `${settings.role} worker ${process.pid}`,
    interceptors: {
      activity: [
        () => ({ inbound: new FailureMapping() }),
        () => ({ inbound: log }),
        () => ({ inbound: new ActivityFailpoints() }),
      ],
    },
    // Whatever does not end in time is done again elsewhere: that is what activities are made for.
    shutdownGraceTime: '500ms',
    shutdownForceTime: '1500ms',
    // The SDK's is most of a timeout: a worker under load would be taken to be dead, and of what ended one would hear late.
    maxHeartbeatThrottleInterval: heartbeatThrottleMs,
  };
  switch (settings.role) {
    case 'orchestrator': {
      const version = await workflowCodeVersion();
      const { onTakeOver: say } = settings;
      if (say) await takeOverRuns({ client: clientOf(settings, connection), version, say });
      return Worker.create({
        ...common,
        buildId: version,
        workflowBundle: { codePath: await workflowBundlePath({ isEncrypted: payloadKeys.length > 0 }) },
        activities: orchestratorActivities(settings, connection),
        // A killed orchestrator's workflows are waited for no longer than this.
        stickyQueueScheduleToStartTimeout: '1s',
        maxCachedWorkflows: 50,
      });
    }
    case 'rollout':
      return Worker.create({
        ...common,
        activities: createRolloutActivities({ inference: inferenceFor(settings), tokenizer: loadTokenizer }),
        maxConcurrentActivityTaskExecutions: 16,
      });
    case 'train':
      return openTrainerWorkers(common, clientOf(settings, connection));
    default:
      return settings.role satisfies never;
  }
}

/** The connection of a worker. */
export async function connectWorker(settings: TemporalSettings): Promise<NativeConnection> {
  try {
    return await NativeConnection.connect(connectionOptions(settings));
  } catch (cause) {
    throw await notConnected(settings, cause);
  }
}

function clientOf({ temporal, payloadKeys }: WorkerSettings, connection: NativeConnection): Client {
  return new Client({ connection, namespace: temporal.namespace, dataConverter: dataConverterFor(payloadKeys) });
}

function orchestratorActivities(settings: WorkerSettings, connection: NativeConnection) {
  const { projectFolder } = settings;
  const { namespace } = settings.temporal;
  const client = clientOf(settings, connection);
  return createOrchestratorActivities({
    projectFolder,
    codeVersion,
    inference: inferenceFor(settings),
    findTrainers: () => findTrainers(client),
    hasSearchAttributes: async () => {
      const { customAttributes } = await connection.operatorService.listSearchAttributes({ namespace });
      return ['RatchetRun', 'RatchetStep', 'RatchetReward'].every((name) => name in customAttributes);
    },
    isWorkflowRunning: async (workflowId) => {
      try {
        return (await client.workflow.getHandle(workflowId).describe()).status.name === 'RUNNING';
      } catch (error) {
        if (error instanceof Error && error.name === 'WorkflowNotFoundError') return false;
        throw error;
      }
    },
  });
}

function say(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** One pool per set of servers: calls of all activities of this process travel together. */
function inferenceFor({ policyUrl, vllmUrl = '' }: WorkerSettings): (spec: RunSpec) => Inference {
  const opened = new Map<string, Inference>();
  return (spec) => {
    const key = JSON.stringify(spec.inference);
    const known =
      opened.get(key) ?? openInference(spec.inference, spec.inference.kind === 'vllm' ? vllmUrl : policyUrl, say);
    opened.set(key, known);
    return known;
  };
}
