import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { isAlive } from './is-alive.ts';
import { bootHere, processPlace } from './process-place.ts';

/**
 * Processes as stored records name them: `HOST.PLACE.BOOT:PID:START`. The place is what its id counts in; the start tells
 * one from a later process of its number, and the boot from one before the machine started again.
 */

export function thisWorker(): string {
  return `${hostname()}.${processPlace()}.${bootHere()}:${process.pid}:${startOf(process.pid) ?? 0}`;
}

/** Whether the process is known to have ended; false in another place, which is not seen from here. */
export function isGone(worker: string): boolean {
  const [of = '', pid, start] = worker.split(':');
  return isHere(worker) && (of.split('.').at(-1) !== bootHere() || startOf(Number(pid)) !== Number(start));
}

/** Whether it is, or was, a process of this place: of this host, and of this container. */
export function isHere(worker: string): boolean {
  return worker.split(':')[0]!.split('.').at(-2) === processPlace();
}

/** When a process began, in ticks since the start of the machine, 0 where that is not told; null if none of the number runs. */
function startOf(pid: number): number | null {
  if (process.platform !== 'linux') return isAlive(pid) ? 0 : null;
  try {
    const [, rest = ''] = /\)([^)]*)$/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    const parts = rest.trim().split(' ');
    return parts[0] === 'Z' ? null : Number(parts[19]);
  } catch {
    return null;
  }
}
