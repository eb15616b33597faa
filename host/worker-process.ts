import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { isAlive } from './is-alive.ts';

/** Processes as stored records name them: `HOST:PID:START`. The start tells one from a later process of its number. */

export function thisWorker(): string {
  return `${hostname()}:${process.pid}:${startOf(process.pid) ?? 0}`;
}

/** Whether the process is known to have ended; false on another host, which is not seen from here. */
export function isGone(worker: string): boolean {
  const [, pid, start] = worker.split(':');
  return isHere(worker) && startOf(Number(pid)) !== Number(start);
}

/** Whether it is, or was, a process of this host. */
export function isHere(worker: string): boolean {
  return worker.split(':')[0] === hostname();
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
