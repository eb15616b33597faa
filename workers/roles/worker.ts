import { Runtime, Worker, type WorkerOptions } from '@temporalio/worker';
import os from 'node:os';
import { heartbeatThrottleMs } from '../../core/limits.ts';
import { queueOfPool, taskQueues } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import { codeDigest } from '../program/code-version.ts';
import { dataConverterFor } from '../temporal/payload-codec.ts';
import { TemporalLink } from '../temporal/temporal-link.ts';
import { watchCredentials } from '../temporal/watch-credentials.ts';
import { Readiness } from './readiness.ts';
import type { OpenedWorker } from './run-worker.ts';
import { workerIdentity } from './worker-identity.ts';
import { say, type WorkerSettings } from './worker-settings.ts';
import { activityInterceptors } from '../../activities/around/interceptors.ts';
import { ProcessLease } from '../../activities/around/process-lease.ts';
import { StoreView } from '../../activities/around/store-view.ts';

/** On one machine the next worker starts at once: work that does not end in time is repeated, as activities allow. */
const shortGraceMs = 500;
/** From the end of the grace until a worker is given up. */
const forceMs = 1_000;

/** A worker that says whether it gets work. */
export interface ConnectedWorker extends OpenedWorker {
  /** Null when it gets work. */
  whyNotReady(): string | null;
}

/** Opens and connects the worker of one role; `runWorker` runs it and forwards SIGTERM. */
export async function openWorker(settings: WorkerSettings): Promise<ConnectedWorker> {
  // The SDK's own handler would shut down every worker of the process at once.
  Runtime.install({ shutdownSignals: [] });
  const link = await TemporalLink.open(settings);
  const view = new StoreView();
  const identity = workerIdentity(settings.role, codeDigest());
  const opened = await openRole(settings, { link, view, identity });
  watchCredentials(settings.temporal, (changed) => link.renew(changed), { say });
  const readiness = new Readiness({
    client: () => link.client,
    taskQueue: taskQueues[settings.role],
    identity,
    isWorking: () => opened.isWorking(),
    seesStores: () => view.isClear,
  });
  return {
    ...opened,
    shutdown: () => {
      readiness.end();
      opened.shutdown();
    },
    whyNotReady: () => readiness.whyNot,
  };
}

interface RoleParts {
  readonly link: TemporalLink;
  readonly view: StoreView;
  readonly identity: string;
}

/**
 * Each role loads only its own modules: a killed rollout worker restarts faster without the trainer and all dialects.
 */
async function openRole(settings: WorkerSettings, { link, view, identity }: RoleParts): Promise<OpenedWorker> {
  const { temporal, payloadKeys, graceMs = shortGraceMs } = settings;
  const { connection } = link;
  const open = async (options: WorkerOptions): Promise<Worker> => {
    const worker = await Worker.create(options);
    link.add(worker);
    return worker;
  };
  const lease = new ProcessLease(os.hostname());
  const common: WorkerOptions = {
    connection,
    namespace: temporal.namespace,
    dataConverter: dataConverterFor(payloadKeys),
    taskQueue: queueOfPool(taskQueues[settings.role], settings.joined?.pool),
    identity,
    interceptors: {
      activity: activityInterceptors({
        role: settings.role,
        codeVersion: codeDigest(),
        view,
        onMissed: (run, error) => lease.lose(run, error),
      }),
    },
    shutdownGraceTime: graceMs,
    shutdownForceTime: graceMs + forceMs,
    // The SDK's default is most of a timeout: a worker under load would be taken for dead, and ends would be noticed
    // late.
    maxHeartbeatThrottleInterval: heartbeatThrottleMs,
  };
  switch (settings.role) {
    case 'orchestrator':
      return (await import('./orchestrator-worker.ts')).openOrchestrator(settings, { common, link, open, view });
    case 'rollout':
      return (await import('./rollout-worker.ts')).openRolloutWorker(settings, { common, open, view });
    case 'train':
      return (await import('./trainer-workers.ts')).openTrainerWorkers({
        common,
        link,
        open,
        view,
        lease,
        graceMs,
        say,
        ...present({ joined: settings.joined }),
      });
    default:
      return settings.role satisfies never;
  }
}
