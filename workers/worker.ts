import { workerSlots } from '../backends/rollouts/slots.ts';
import { PlaySlots } from './play-slots.ts';
import { Runtime, Worker, type WorkerOptions } from '@temporalio/worker';
import { randomBytes } from 'node:crypto';
import os from 'node:os';
import { createOrchestratorActivities, createRolloutActivities } from '../activities/index.ts';
import { Beating } from '../activities/around/beating.ts';
import { ActivityFailpoints } from '../activities/around/failpoint-interceptor.ts';
import { FailureMapping } from '../activities/around/failures.ts';
import { RunLog } from '../activities/around/run-log.ts';
import { openInference } from '../backends/inference/index.ts';
import type { Inference } from '../backends/inference/index.ts';
import { heartbeatThrottleMs } from '../core/limits.ts';
import { taskQueues, type WorkerRole } from '../core/names.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { loadTokenizer } from '../engine/index.ts';
import { codeVersion } from './code-version.ts';
import { findTrainers, pollerCount } from './find-trainers.ts';
import type { Credentials } from './credentials.ts';
import { dataConverterFor } from './payload-codec.ts';
import { TemporalLink } from './temporal-link.ts';
import { beCurrent, beUnversioned, currentLine, hasDeployments, pinnedTo } from './worker-deployment.ts';
import { watchCredentials } from './watch-credentials.ts';
import { type OpenedWorker, runTogether } from './run-worker.ts';
import { hasSearchAttributes } from './has-search-attributes.ts';
import { fewSlots, openTrainerWorkers } from './trainer-workers.ts';
import { takeOverRuns } from './take-over.ts';
import { workflowBundlePath, workflowCodeVersion } from './workflow-bundle.ts';

interface WorkerSettings extends Credentials {
  readonly role: WorkerRole;
  readonly projectFolder: string;
  /** How long what is under way may go on when the worker is told to end; what has not ended then is done again elsewhere. */
  readonly graceMs?: number;
  /** Rollouts that a rollout worker plays at once; as many as fit into its memory where it is not said. */
  readonly maxRollouts?: number;
  /** The policy server that a run uses when its config names none. */
  readonly policyUrl: string;
  /** The same of vLLM, '' where none was started; missing = none. */
  readonly vllmUrl?: string;
  /** Set where this is the server's only orchestrator: runs of other workflow code are started anew, and it is told. */
  readonly onTakeOver?: ((line: string) => void) | undefined;
}

/** On one machine the next worker is there at once: whatever does not end in time is done again, which is what activities are made for. */
const shortGraceMs = 500;
/** From the end of the grace until a worker is given up. */
const forceMs = 1_000;

/** The worker of one role, connected; `runWorker` runs it, and tells it of SIGTERM. */
export async function openWorker(settings: WorkerSettings): Promise<OpenedWorker> {
  // By itself the SDK would shut down every worker of the process at once.
  Runtime.install({ shutdownSignals: [] });
  const link = await TemporalLink.open(settings);
  const opened = await openRole(settings, link);
  watchCredentials(settings, (changed) => link.renew(changed), { say });
  return opened;
}

async function openRole(settings: WorkerSettings, link: TemporalLink): Promise<OpenedWorker> {
  const { temporal, payloadKeys, graceMs = shortGraceMs } = settings;
  const { connection } = link;
  const open = async (options: WorkerOptions): Promise<Worker> => {
    const worker = await Worker.create(options);
    link.add(worker);
    return worker;
  };
  const log = new RunLog(settings.role);
  const common: WorkerOptions = {
    connection,
    namespace: temporal.namespace,
    dataConverter: dataConverterFor(payloadKeys),
    taskQueue: taskQueues[settings.role],
    // In containers hosts have odd names, and every process number is 1 or 7.
    identity: `${settings.role} worker ${process.pid}@${os.hostname()} ${randomBytes(3).toString('hex')}`,
    interceptors: {
      activity: [
        () => ({ inbound: new FailureMapping() }),
        () => ({ inbound: log }),
        () => ({ inbound: new Beating() }),
        () => ({ inbound: new ActivityFailpoints() }),
      ],
    },
    shutdownGraceTime: graceMs,
    shutdownForceTime: graceMs + forceMs,
    // The SDK's is most of a timeout: a worker under load would be taken to be dead, and of what ended one would hear late.
    maxHeartbeatThrottleInterval: heartbeatThrottleMs,
  };
  switch (settings.role) {
    case 'orchestrator': {
      const version = await workflowCodeVersion();
      const { onTakeOver } = settings;
      const asked = { service: link.client.workflowService, namespace: temporal.namespace };
      if (onTakeOver) {
        await beUnversioned(asked);
        await takeOverRuns({ client: link.client, version, say: onTakeOver });
      }
      // A server with one orchestrator has every run taken over by the newest.
      const isPinned = onTakeOver === undefined && (await hasDeployments(asked));
      const worker = await open({
        ...common,
        ...(isPinned ? pinnedTo(version) : { buildId: version }),
        workflowBundle: { codePath: await workflowBundlePath(version, { isEncrypted: payloadKeys.length > 0 }) },
        activities: orchestratorActivities(settings, link),
        // A killed orchestrator's workflows are waited for no longer than this.
        stickyQueueScheduleToStartTimeout: '1s',
        maxCachedWorkflows: 50,
      });
      if (isPinned) void beCurrent(asked, version).then((is) => say(currentLine(version, is)));
      return runTogether([worker]);
    }
    case 'rollout': {
      if (settings.maxRollouts !== undefined) workerSlots.limit = settings.maxRollouts;
      return runTogether([
        await open({
          ...common,
          activities: createRolloutActivities({ inference: inferenceFor(settings), tokenizer: loadTokenizer }),
          tuner: { ...fewSlots, activityTaskSlotSupplier: new PlaySlots(workerSlots) },
        }),
      ]);
    }
    case 'train':
      return openTrainerWorkers({ common, link, open, graceMs, say });
    default:
      return settings.role satisfies never;
  }
}

function orchestratorActivities(settings: WorkerSettings, link: TemporalLink) {
  const { projectFolder } = settings;
  const { namespace } = settings.temporal;
  return createOrchestratorActivities({
    projectFolder,
    codeVersion,
    inference: inferenceFor(settings),
    findTrainers: () => findTrainers(link.client),
    countRolloutWorkers: pollerCount(link.client, taskQueues.rollout),
    hasSearchAttributes: () =>
      hasSearchAttributes({
        list: async () => (await link.connection.operatorService.listSearchAttributes({ namespace })).customAttributes,
        count: (query) => link.client.workflow.count(query),
      }),
    isWorkflowRunning: async (workflowId) => {
      try {
        return (await link.client.workflow.getHandle(workflowId).describe()).status.name === 'RUNNING';
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
