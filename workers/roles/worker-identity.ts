import { randomBytes } from 'node:crypto';
import os from 'node:os';
import { workerRoles, type WorkerRole } from '../../core/names.ts';

/** A worker process, parsed from its identity. Temporal reports the identity with each activity and for each poller of a queue. */
export interface NamedWorker {
  readonly role: WorkerRole;
  /** `PID@HOST` */
  readonly place: string;
  /** Six hexadecimal digits. */
  readonly tag: string;
  /** Digest of the worker's code, see `codeDigest`; null for versions before 28 November 2026. */
  readonly code: string | null;
}

/** Environment variable in which a stack gives its worker the tag that it knows it by. */
export const workerTagVar = 'RATCHET_WORKER_TAG';

/** Random digits, because in containers process numbers are often 1 or 7 and host names may repeat. */
export function workerTag(): string {
  return randomBytes(3).toString('hex');
}

export function workerIdentity(role: WorkerRole, code: string): string {
  const given = process.env[workerTagVar] ?? '';
  const tag = /^[0-9a-f]{6}$/.test(given) ? given : workerTag();
  return `${role} worker ${process.pid}@${os.hostname()} ${tag} code ${code}`;
}

/** Returns null if the identity is not that of a Ratchet worker. */
export function workerIn(identity: string): NamedWorker | null {
  const [, role, place, tag, code] =
    /^(\S+) worker (\d+@\S+) ([0-9a-f]{6})(?: code ([0-9a-f]{8}))?$/.exec(identity) ?? [];
  const known = workerRoles.find((one) => one === role);
  return known === undefined || place === undefined ? null : { role: known, place, tag: tag!, code: code ?? null };
}

const nouns = { orchestrator: 'the orchestrator', rollout: 'the rollout worker', train: 'the GPU worker' } as const;

/** Name for messages: `the rollout worker 4711@gpu-box`. */
export function workerName({ role, place }: Pick<NamedWorker, 'role' | 'place'>): string {
  return `${nouns[role]} ${place}`;
}
