import { openRoundsMax } from '../limits.ts';

/**
 * How many groups are sampled at a time, and ahead of the step that trains. Groups that are leased and not trained yet are the window: some
 * are in play, some wait for a batch.
 */

/** What was measured of this run; null while nothing was. Seconds. */
export interface SamplingPace {
  /** What the slowest of the newest rounds took. */
  readonly roundS: number | null;
  /** From one batch to the next, newest last. */
  readonly batchS: number | null;
}

/** Rounds that take longer than this are sampled continuously; below, one round for each step has fewer events. */
const slowRoundS = 2;

/** A batch is sampled in about so many leases where rollouts are slow: what one of them holds up is a small part of it. */
const leasesPerBatch = 16;

/** Before anything was measured a batch is sampled in so few leases, of so many groups at least. */
const unmeasured = { leases: 4, groupsMin: 8 };

/**
 * Whether the window is kept full across steps, rather than filled once for each: beyond one step ahead always, one step ahead where rollouts
 * are slow. Examples that are begun at a given pace (`tasks_per_minute`) are begun round by round.
 */
export function isContinuous(level: number, { roundS }: SamplingPace, isPaced: boolean): boolean {
  if (isPaced || level === 0) return false;
  return level > 1 || (roundS ?? 0) >= slowRoundS;
}

/** How many groups the window holds: what becomes ready while a round is in play, and a batch more; up to `level` batches ahead. */
export function windowGroups(input: {
  readonly groupsPerBatch: number;
  readonly level: number;
  readonly oversamplingFactor: number;
  /** Steps that are still to be made, the one in question included. */
  readonly stepsLeft: number;
  readonly pace: SamplingPace;
}): number {
  const { groupsPerBatch, level, oversamplingFactor, stepsLeft, pace } = input;
  const { roundS, batchS } = pace;
  const during = roundS === null || batchS === null ? 1 : Math.ceil(roundS / Math.max(batchS, 0.05));
  const batches = Math.max(1, Math.min(level, 1 + during, stepsLeft - 1) + 1);
  return Math.ceil(groupsPerBatch * (batches - 1 + oversamplingFactor));
}

/** Of how many groups a lease is. Never so few that more rounds would be open than a commit can name. */
export function leaseGroups(input: {
  readonly groupsPerBatch: number;
  readonly window: number;
  readonly rolloutsPerExample: number;
  /** Rollouts at once, where the config says so. */
  readonly maxConcurrent: number | null;
  readonly pace: SamplingPace;
}): number {
  const { groupsPerBatch, window, rolloutsPerExample, maxConcurrent, pace } = input;
  const { roundS } = pace;
  const wanted =
    roundS === null
      ? Math.max(unmeasured.groupsMin, Math.ceil(groupsPerBatch / unmeasured.leases))
      : roundS < slowRoundS
        ? groupsPerBatch
        : Math.ceil(groupsPerBatch / leasesPerBatch);
  const fewest = Math.ceil(window / openRoundsMax);
  const most = maxConcurrent === null ? Infinity : Math.max(1, Math.floor(maxConcurrent / rolloutsPerExample / 2));
  return Math.max(fewest, Math.min(wanted, groupsPerBatch, most));
}

/** Seconds that at least one of these intervals covers. */
export function secondsCovered(intervals: readonly (readonly [from: number, to: number])[]): number {
  let [sum, end] = [0, -Infinity];
  for (const [from, to] of intervals.toSorted(([a], [b]) => a - b)) {
    sum += Math.max(0, to - Math.max(from, end));
    end = Math.max(end, to);
  }
  return sum;
}
