import { randomBytes } from 'node:crypto';
import os from 'node:os';
import { workerRoles, type WorkerRole } from '../core/names.ts';

/** A worker's process, as its identity names it. Temporal tells of each activity whose it was, and of each queue who polls it. */
export interface NamedWorker {
  readonly role: WorkerRole;
  /** `PID@HOST` */
  readonly place: string;
  /** Digest of the code it runs, see `codeDigest`; null of versions before 28 November 2026, which do not tell. */
  readonly code: string | null;
}

/** In containers hosts have odd names, and every process number is 1 or 7: so random digits are in it as well. */
export function workerIdentity(role: WorkerRole, code: string): string {
  return `${role} worker ${process.pid}@${os.hostname()} ${randomBytes(3).toString('hex')} code ${code}`;
}

/** Null where it is no worker of ours. */
export function workerIn(identity: string): NamedWorker | null {
  const [, role, place, code] = /^(\S+) worker (\d+@\S+) [0-9a-f]{6}(?: code ([0-9a-f]{8}))?$/.exec(identity) ?? [];
  const known = workerRoles.find((one) => one === role);
  return known === undefined || place === undefined ? null : { role: known, place, code: code ?? null };
}

const nouns = { orchestrator: 'the orchestrator', rollout: 'the rollout worker', train: 'the GPU worker' } as const;

/** As people read it: `the rollout worker 4711@gpu-box`. */
export function workerName({ role, place }: Pick<NamedWorker, 'role' | 'place'>): string {
  return `${nouns[role]} ${place}`;
}
