import type { Turn } from './rollout.ts';
import type { KeptGroups } from './run-state.ts';
import { decodeRanges } from './ledger.ts';

/** How far behind a group is when its step trains: counted from the oldest token that is trained of it. */

/** Step n trains on top of version n−1; a group whose oldest token is of that version is 0 versions stale. */
export function staleness(step: number, oldestStep: number): number {
  return step - 1 - oldestStep;
}

/** Whether tokens of version `oldestStep` are too old to be trained in `step`. */
export function isStale(oldestStep: number, step: number, maxOffPolicySteps: number): boolean {
  return staleness(step, oldestStep) > maxOffPolicySteps;
}

/** The version that a group's oldest trained token was sampled with; the lease's where nothing was sampled. */
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

/** Of kept groups, by ordinal. */
export function oldestSteps({
  ordinals,
  policyStep,
  oldest,
}: Omit<KeptGroups, 'scored'>): (readonly [ordinal: number, oldestStep: number])[] {
  return decodeRanges(ordinals).map((ordinal, i) => [ordinal, oldest?.[i] ?? policyStep]);
}
