import type { KeptGroups } from '../run-state.ts';
import { youngestOf } from '../learning/selection.ts';
import { isStale, oldestSteps } from './staleness.ts';

/**
 * Which groups a batch waits for. A group lasts as long as its longest rollout. Training on whatever is ready would
 * favour the easy and short groups, and drop the hard ones as stale. Two rules keep the trained groups an unbiased part
 * of the issued ones:
 *
 * - A budget bounds the groups that may become stale: two in a hundred that ended. Beyond it, the step waits until
 *   enough of them have ended. So steps become as long as the bound on age requires.
 * - The first batches take groups in the order of issue, with few exceptions. Later, as many late groups come in as
 *   are left out, and order matters less and less.
 *
 * Time plays no part here: a batch waits for groups, which end or reach their deadline.
 */

/** Share of ended groups that may have grown stale. */
const staleShareMax = 0.02;

/** The budget, and its debt, are limited to the earnings of this many batches. */
const batchesSaved = 16;

/** Share of a batch that younger groups may overtake during the first batches, and its increase with each later one. */
const overtaken = { share: 0.15, batches: 10, morePerBatch: 0.06 };

/** How many more groups may become stale, after a batch with these numbers. Begins with 0. */
export function staleBudgetAfter(
  before: number,
  {
    ended,
    stale,
    groupsPerBatch,
  }: {
    /** Ended groups, in whatever state. */
    readonly ended: number;
    /** Ended groups that were stale. */
    readonly stale: number;
    readonly groupsPerBatch: number;
  },
): number {
  const most = Math.max(1, batchesSaved * staleShareMax * groupsPerBatch);
  return Math.max(-most, Math.min(most, before + staleShareMax * ended - stale));
}

/** How many groups in flight may be older than the youngest of the step's batch. */
export function overtakenMax(step: number, groupsPerBatch: number): number {
  const { share, batches, morePerBatch } = overtaken;
  return Math.max(1, groupsPerBatch * (share + morePerBatch * Math.max(0, step - batches)));
}

/** How many groups in flight the step's batch waits for; 0: it is ready. */
export function groupsAwaited(input: {
  readonly step: number;
  /** Groups that the batch would have now. */
  readonly trained: readonly KeptGroups[];
  readonly inPlay: Iterable<{ readonly ordinal: number; readonly policyStep: number }>;
  /** Groups issued for a batch: more than it has if a filter drops some. */
  readonly groupsPerBatch: number;
  /** Groups left for the next batch. */
  readonly surplus: readonly KeptGroups[];
  readonly maxOffPolicySteps: number;
  readonly staleBudget: number;
}): number {
  const { step, trained, inPlay, surplus, groupsPerBatch, maxOffPolicySteps } = input;
  const isLost = ([, oldest]: readonly [number, oldest: number]): boolean =>
    isStale(oldest, step + 1, maxOffPolicySteps);
  // These are lost in any case.
  const staleBudget = input.staleBudget - surplus.flatMap(oldestSteps).filter(isLost).length;
  const youngest = youngestOf(trained);
  let [older, tooOldNext] = [0, 0];
  for (const { ordinal, policyStep } of inPlay) {
    if (ordinal < youngest) older += 1;
    if (isStale(policyStep, step + 1, maxOffPolicySteps)) tooOldNext += 1;
  }
  const tooMany = (groups: number, most: number): number => Math.max(0, groups - Math.floor(Math.max(0, most)));
  return Math.max(tooMany(older, overtakenMax(step, groupsPerBatch)), tooMany(tooOldNext, staleBudget));
}

/** The shortest step time at which at most `staleShareMax` of the groups outlast the bound, given groups' durations. */
export function leastStepS(groupS: readonly number[], maxOffPolicySteps: number): number {
  const sorted = groupS.toSorted((a, b) => a - b);
  return (sorted[Math.floor((1 - staleShareMax) * sorted.length)] ?? 0) / Math.max(1, maxOffPolicySteps);
}
