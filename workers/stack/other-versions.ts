import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { taskQueues } from '../../core/names.ts';
import { codeDigest } from '../program/code-version.ts';
import { findTrainers, freshPollers } from '../roles/find-trainers.ts';
import { type NamedWorker, workerIn, workerName } from '../roles/worker-identity.ts';

/** The SDK's message for an activity that a worker does not have. */
const notRegistered = /^Activity function (\S+) is not registered on this Worker/;

/**
 * Failure of an activity. If its worker does not have the activity, the message names the worker, its machine and what
 * to do.
 */
export function namingTheWorker(failure: string, identity: string | null | undefined, code = codeDigest): string {
  const [, activity] = notRegistered.exec(failure) ?? [];
  if (activity === undefined) return failure;
  const ours = code();
  const worker = workerIn(identity ?? '');
  const who = worker === null ? `a worker (${identity || 'of no name'})` : workerName(worker);
  const has = `${who} has no activity ${activity}: it is of another version than the orchestrator that asks for it`;
  // A worker of this very version is right, so the orchestrator must be restarted instead.
  if (worker?.code === ours) return `${has}. Restart the orchestrator with this version (code ${ours})`;
  return `${has} (${codeOf(worker?.code ?? null)}). Restart it with this version (code ${ours}); a worker that has the activity takes it meanwhile, if there is one`;
}

/** How long an answer is cached, because leases ask more often. */
const lookedMs = 30_000;
/** How long a lease waits for an answer. A later answer is reported with the next lease. */
const answerMs = 1_000;

/** Returns a cached `otherVersions`. `client`: that of the current connection. */
export function watchVersions(client: () => Client): () => Promise<readonly string[]> {
  let [looking, at] = [Promise.resolve<readonly string[]>([]), -Infinity];
  return () => {
    if (performance.now() - at >= lookedMs) [looking, at] = [otherVersions(client()), performance.now()];
    return Promise.race([looking, delay(answerMs, [], { ref: false })]);
  };
}

/**
 * Returns one line for each worker of a different version that polls this server or holds a run. Two versions may interpret stored data
 * differently. Empty if all have one version, or if the server does not list workers.
 */
export async function otherVersions(client: Client): Promise<readonly string[]> {
  try {
    const queues = [taskQueues.orchestrator, taskQueues.rollout];
    const polling = await Promise.all(queues.map((queue) => freshPollers(client, queue)));
    const identities = [...polling.flat(), ...(await findTrainers(client)).trainers].map(({ identity }) => identity);
    return linesOf([...new Set(identities)].flatMap((identity) => workerIn(identity) ?? []));
  } catch {
    return []; // the server may be restarting, or may not permit the call
  }
}

type SeenWorker = Omit<NamedWorker, 'tag'>;

export function linesOf(workers: readonly SeenWorker[], code = codeDigest): string[] {
  const codes = new Set(workers.map(({ code }) => code));
  if (codes.size < 2) return [];
  const ours = code(); // read lazily: it takes all source files
  const wanted = codes.has(ours) ? ours : onlyOne(workers.filter(({ role }) => role === 'orchestrator'));
  if (wanted === null) {
    const all = workers.map((worker) => `${workerName(worker)} (${codeOf(worker.code)})`);
    return [`workers of several versions ask for work: ${all.join(', ')}. Restart all of them with one version`];
  }
  return workers.filter(({ code }) => code !== wanted).map((worker) => lineOf(worker, wanted));
}

/** A worker that reports no code version is older. If both report one, their order is unknown. */
function lineOf(worker: SeenWorker, wanted: string): string {
  const toDo = worker.code === null ? 'restart it with theirs' : 'restart it or them, so that all are of one version';
  return `${workerName(worker)} is of another version (${codeOf(worker.code)}) than the others (code ${wanted}): ${toDo}, if it still runs`;
}

/** The common code version; null if they differ or report none. */
function onlyOne(workers: readonly SeenWorker[]): string | null {
  const [code = null, ...more] = new Set(workers.map((worker) => worker.code));
  return more.length === 0 ? code : null;
}

function codeOf(code: string | null): string {
  return code === null ? 'an older one, which does not say which' : `code ${code}`;
}
