import type { Turn } from '../rollout/rollout.ts';
import type { KeptGroups } from '../run-state.ts';
import { decodeRanges } from '../ledger.ts';

/** How far behind a group is when its step trains on it, by its oldest trained token. */

/** Step n trains on top of version n−1; a group whose oldest token is of that version is 0 versions stale. */
export function staleness(step: number, oldestStep: number): number {
  return step - 1 - oldestStep;
}

/** Whether tokens of version `oldestStep` are too old to be trained in `step`. */
export function isStale(oldestStep: number, step: number, maxOffPolicySteps: number): boolean {
  return staleness(step, oldestStep) > maxOffPolicySteps;
}

/** The version that sampled a group's oldest trained token; the lease's if nothing was sampled. */
export function oldestStepOf({
  policyStep,
  rollouts,
}: {
  readonly policyStep: number;
  readonly rollouts: readonly { readonly reward: number | null; readonly turns: readonly Pick<Turn, 'policyStep'>[] }[];
}): number {
  let oldest = Infinity;
  for (const { reward, turns } of rollouts) {
    if (reward !== null) for (const turn of turns) oldest = Math.min(oldest, turn.policyStep);
  }
  return oldest === Infinity ? policyStep : oldest;
}

/** Oldest steps of kept groups, by ordinal. */
export function oldestSteps({
  ordinals,
  policyStep,
  oldest,
}: Omit<KeptGroups, 'scored'>): (readonly [ordinal: number, oldestStep: number])[] {
  return decodeRanges(ordinals).map((ordinal, i) => [ordinal, oldest?.[i] ?? policyStep]);
}
