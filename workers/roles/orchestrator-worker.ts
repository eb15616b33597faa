import type { Worker, WorkerOptions } from '@temporalio/worker';
import { type OpenedWorker, runTogether } from './run-worker.ts';
import { BrokenHistories } from '../stack/broken-histories.ts';
import { takeOverRuns } from '../stack/take-over.ts';
import { beCurrent, beUnversioned, currentLine, hasDeployments, pinnedTo } from '../temporal/worker-deployment.ts';
import { workflowBundlePath, workflowCodeVersion } from '../program/workflow-bundle.ts';
import type { StoreView } from '../../activities/around/store-view.ts';
import { orchestratorActivities } from './orchestrator-activities.ts';
import { say, type WorkerSettings } from './worker-settings.ts';
import type { TemporalLink } from '../temporal/temporal-link.ts';
import { CountedSlots, GatedSlots } from './gated-slots.ts';
import { withinLoad } from './load-slots.ts';

interface OrchestratorParts {
  readonly common: WorkerOptions;
  readonly link: TemporalLink;
  readonly view: StoreView;
  readonly open: (options: WorkerOptions) => Promise<Worker>;
}

/** Workflow tasks at once; the SDK's default. */
const workflowTasksMax = 40;
const activitiesMax = 100;
/**
 * Workflows whose state is held: a run and the workflow that plays its rounds are two. One that is not held is replayed from
 * its whole history at each of its tasks, so beyond this number steps get dearer with each further run.
 */
const workflowsCachedMax = 500;

/** The worker of workflows, and of the activities that are glue between stored objects. */
export async function openOrchestrator(
  settings: WorkerSettings,
  { common, link, open, view }: OrchestratorParts,
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
    maxCachedWorkflows: workflowsCachedMax,
    tuner: {
      workflowTaskSlotSupplier: { type: 'fixed-size', numSlots: workflowTasksMax },
      activityTaskSlotSupplier: withinLoad(new GatedSlots(new CountedSlots(activitiesMax), view), settings.loadTarget),
      localActivityTaskSlotSupplier: { type: 'fixed-size', numSlots: activitiesMax },
      nexusTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
    },
  });
  if (isPinned) void beCurrent(asked, version).then((is) => say(currentLine(version, is)));
  return healing(runTogether([worker]), new BrokenHistories({ client: () => link.client, version, say }));
}

/** The worker, which looks for broken histories while it runs. */
function healing(worker: OpenedWorker, histories: BrokenHistories): OpenedWorker {
  const ends = new AbortController();
  return {
    ...worker,
    run: () => {
      void histories.watch(ends.signal);
      return worker.run().finally(() => ends.abort());
    },
    shutdown: () => {
      ends.abort();
      worker.shutdown();
    },
  };
}
