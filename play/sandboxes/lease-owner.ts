import type { LeaseOwner } from '../../core/settings/sandboxes.ts';

/** One number for the attempt at a chunk, from 1, and of its activity: a later one is larger, whichever of both went on. */
export function leaseAttempt(attempt: number, retry: number): number {
  return attempt * retriesMax + Math.min(retry, retriesMax - 1);
}

const retriesMax = 1_000;

export function isSameRollout(one: LeaseOwner, other: LeaseOwner): boolean {
  return (['run', 'lineage', 'group', 'index'] as const).every((part) => one[part] === other[part]);
}
