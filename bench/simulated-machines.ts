/**
 * Many workers of a pool in one process, as `fleet-scale` has them: `--role train` or `rollout`, `--count`, `--pool`. Each
 * polls Temporal by itself, and does what a real one does. Rollout workers take one chunk at a time; trainers are as in a process of their own.
 */
import os from 'node:os';
import { parseArgs } from 'node:util';
import { Runtime, Worker, type WorkerOptions } from '@temporalio/worker';
import { activityInterceptors } from '../activities/around/interceptors.ts';
import { ProcessLease } from '../activities/around/process-lease.ts';
import { StoreView } from '../activities/around/store-view.ts';
import { createRolloutActivities } from '../activities/of-rollout-worker.ts';
import { heartbeatThrottleMs } from '../core/limits.ts';
import { queueOfPool, taskQueues } from '../core/names.ts';
import { loadTokenizer } from '../engine/model/tokenizer/load-tokenizer.ts';
import { holdSecret } from '../host/project-secret.ts';
import { workerSlots } from '../play/slots.ts';
import { codeDigest } from '../workers/program/code-version.ts';
import { type OpenedWorker, runTogether } from '../workers/roles/run-worker.ts';
import { openTrainerWorkers } from '../workers/roles/trainer-workers.ts';
import { workerIdentity } from '../workers/roles/worker-identity.ts';
import { inferenceFor, say } from '../workers/roles/worker-settings.ts';
import { TemporalLink } from '../workers/temporal/temporal-link.ts';
import { takeCredentials } from '../workers/temporal/credentials.ts';

const { values } = parseArgs({
  options: { role: { type: 'string' }, count: { type: 'string' }, pool: { type: 'string' } },
});
const role = values.role === 'train' ? 'train' : 'rollout';
const count = Number(values.count);
const pool = values.pool!;

holdSecret(process.cwd());
Runtime.install({ shutdownSignals: [] });
const credentials = takeCredentials();
const view = new StoreView();
workerSlots.limit = Number.MAX_SAFE_INTEGER; // each worker takes one chunk at a time
const activities = createRolloutActivities({
  inference: inferenceFor({ ...credentials, role, projectFolder: process.cwd(), policyUrl: '' }),
  tokenizer: loadTokenizer,
});
const workers = await Promise.all(Array.from({ length: count }, open));
process.on('SIGTERM', () => process.exit(0));
process.stdout.write(`${role} worker ready\n`);
await Promise.all(workers.map((worker) => worker.run()));

/** Opens a worker with a connection of its own, because the SDK refuses a second worker of one queue on the same connection. */
async function open(): Promise<OpenedWorker> {
  const link = await TemporalLink.open(credentials);
  const lease = new ProcessLease(os.hostname());
  const code = codeDigest();
  const common: WorkerOptions = {
    connection: link.connection,
    namespace: credentials.temporal.namespace,
    taskQueue: queueOfPool(taskQueues[role], pool),
    identity: workerIdentity(role, code),
    interceptors: {
      activity: activityInterceptors({
        role,
        codeVersion: code,
        view,
        onMissed: (run, error) => lease.lose(run, error),
      }),
    },
    shutdownGraceTime: 500,
    maxHeartbeatThrottleInterval: heartbeatThrottleMs,
  };
  if (role === 'train')
    return openTrainerWorkers({ common, link, open: (options) => Worker.create(options), view, lease, graceMs: 0, say, joined: { pool, labels: {} } }); // prettier-ignore
  return runTogether([await Worker.create({ ...common, activities, maxConcurrentActivityTaskExecutions: 1 })]);
}
