import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import type { LeaseOwner } from '../../core/settings/sandboxes.ts';

/** This process, as leases name it: `HOST:PID:START`. The start tells it from a later process of its number. */
export function thisWorker(): string {
  return `${hostname()}:${process.pid}:${startOf(process.pid) ?? 0}`;
}

/** Whether the process is known to have ended; false on another host, which is not seen from here. */
export function isGone(worker: string): boolean {
  const [host, pid, start] = worker.split(':');
  return host === hostname() && startOf(Number(pid)) !== Number(start);
}

export function isHere(worker: string): boolean {
  return worker.split(':')[0] === hostname();
}

/** One number for the attempt at a chunk, from 1, and of its activity: a later one is larger, whichever of both went on. */
export function leaseAttempt(attempt: number, retry: number): number {
  return attempt * retriesMax + Math.min(retry, retriesMax - 1);
}

const retriesMax = 1_000;

export function isSameRollout(one: LeaseOwner, other: LeaseOwner): boolean {
  return (['run', 'lineage', 'group', 'index'] as const).every((part) => one[part] === other[part]);
}

/** When a process began, in ticks since the start of the machine; null if there is none of the number. */
function startOf(pid: number): number | null {
  try {
    const [, rest = ''] = /\)([^)]*)$/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    return Number(rest.trim().split(' ')[19]);
  } catch {
    return process.platform === 'linux' ? null : 0;
  }
}
