import type { Worker, WorkerOptions } from '@temporalio/worker';
import { type OpenedWorker, runTogether } from './run-worker.ts';
import { takeOverRuns } from './take-over.ts';
import { beCurrent, beUnversioned, currentLine, hasDeployments, pinnedTo } from './worker-deployment.ts';
import { workflowBundlePath, workflowCodeVersion } from './workflow-bundle.ts';
import { createOrchestratorActivities } from '../activities/index.ts';
import { openInference, type Inference } from '../backends/inference/index.ts';
import { taskQueues, type WorkerRole } from '../core/names.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { codeVersion } from './code-version.ts';
import { findTrainers, pollerCount } from './find-trainers.ts';
import type { Credentials } from './credentials.ts';
import type { TemporalLink } from './temporal-link.ts';
import { hasSearchAttributes } from './has-search-attributes.ts';

export interface WorkerSettings extends Credentials {
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

interface OrchestratorParts {
  readonly common: WorkerOptions;
  readonly link: TemporalLink;
  readonly open: (options: WorkerOptions) => Promise<Worker>;
}

/** The worker of workflows, and of the activities that are glue between stored objects. */
export async function openOrchestrator(
  settings: WorkerSettings,
  { common, link, open }: OrchestratorParts,
): Promise<OpenedWorker> {
  const version = await workflowCodeVersion();
  const { onTakeOver, payloadKeys, temporal } = settings;
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

export function say(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** One pool per set of servers: calls of all activities of this process travel together. */
export function inferenceFor({ policyUrl, vllmUrl = '' }: WorkerSettings): (spec: RunSpec) => Inference {
  const opened = new Map<string, Inference>();
  return (spec) => {
    const key = JSON.stringify(spec.inference);
    const known =
      opened.get(key) ?? openInference(spec.inference, spec.inference.kind === 'vllm' ? vllmUrl : policyUrl, say);
    opened.set(key, known);
    return known;
  };
}
