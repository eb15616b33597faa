import type { DifficultyBounds } from '../../settings/rollouts.ts';
import { rewardMoments } from '../learning/advantage.ts';

/** Selects the groups that are worth a gradient. */

export type DropReason = 'too_easy' | 'too_hard' | 'low_variance' | 'no_signal' | 'non_finite';

type Verdict = { readonly kept: true } | { readonly kept: false; readonly reason: DropReason };

/**
 * Judges one group by the rewards of its rollouts (null = no reward, left out). It is kept when
 *
 *     min_reward ≤ mean ≤ max_reward   and   population variance ≥ min_reward_variance
 *
 * and, with online_difficulty_filtering, when its mean is neither exactly 0 nor exactly 1 (prime-rl v0.4,
 * orchestrator/buffer.py). A group whose rewards are equal up to rounding has no advantage: it is kept only if the filter
 * keeps such groups. The mean is judged first, because "too easy" is a better reason than "no variance". A group whose mean
 * or variance overflows is dropped without a comparison: only finite numbers enter a batch.
 */
export function judgeGroup(rewards: readonly (number | null)[], filter: DifficultyBounds): Verdict {
  const { count, mean, variance } = rewardMoments(rewards);
  if (count === 0) return dropped('no_signal');
  if (!Number.isFinite(mean) || !Number.isFinite(variance)) return dropped('non_finite');
  if (mean > filter.maxReward || (filter.onlineDifficultyFiltering && mean === 1)) return dropped('too_easy');
  if (mean < filter.minReward || (filter.onlineDifficultyFiltering && mean === 0)) return dropped('too_hard');
  if (variance < filter.minRewardVariance) return dropped('low_variance');
  if (variance === 0 && filter.keepsEqual !== true) return dropped('no_signal');
  return { kept: true };
}

/** Whether every rewarded rollout of a group solved its example (reward ≥ 1), none did (reward ≤ 0), or some did. */
export function groupSolved(rewards: readonly (number | null)[]): 'all' | 'none' | 'some' {
  const present = rewards.filter((reward) => reward !== null);
  if (present.length === 0) return 'some';
  if (present.every((reward) => reward >= 1)) return 'all';
  return present.every((reward) => reward <= 0) ? 'none' : 'some';
}

/** How many groups were solved by all, by none and by some of their rollouts. Groups without rewards count as neither. */
export function solvedCounts(groups: readonly (readonly (number | null)[])[]): Record<'all' | 'none' | 'some', number> {
  const counts = { all: 0, none: 0, some: 0 };
  for (const rewards of groups) {
    if (rewards.some((reward) => reward !== null)) counts[groupSolved(rewards)] += 1;
  }
  return counts;
}

/**
 * The filter without the config's bounds: only groups with equal rewards are dropped, unless they have a gradient. The
 * fallback of `on_starvation = "widen"`.
 */
export function widenedBounds({ keepsEqual = false }: Pick<DifficultyBounds, 'keepsEqual'> = {}): DifficultyBounds {
  const { MAX_VALUE } = Number;
  return {
    minRewardVariance: 0,
    minReward: -MAX_VALUE,
    maxReward: MAX_VALUE,
    onlineDifficultyFiltering: false,
    keepsEqual,
  };
}

/** Bins of a histogram of group means: all wrong, tenths between, all right, and values outside [0, 1]. */
export const meanBins: readonly string[] = [
  'below 0',
  '0',
  ...Array.from({ length: 10 }, (_, i) => `${i / 10}-${(i + 1) / 10}`),
  '1',
  'above 1',
];

/** How many groups have their mean reward in each of `meanBins`; groups without rewards are in none. */
export function meanHistogram(groups: readonly (readonly (number | null)[])[]): number[] {
  const counts = meanBins.map(() => 0);
  for (const rewards of groups) {
    const { count, mean } = rewardMoments(rewards);
    if (count > 0 && !Number.isNaN(mean)) counts[binOf(mean)]! += 1;
  }
  return counts;
}

export function addHistograms(a: readonly number[], b: readonly number[]): number[] {
  return meanBins.map((_, i) => (a[i] ?? 0) + (b[i] ?? 0));
}

/** `0: 31, 0.4-0.5: 2, 1: 12`: the bins that hold anything. */
export function describeHistogram(counts: readonly number[]): string {
  const filled = meanBins.flatMap((bin, i) => ((counts[i] ?? 0) > 0 ? [`${bin}: ${counts[i]}`] : []));
  return filled.length === 0 ? 'none has a reward' : filled.join(', ');
}

function binOf(mean: number): number {
  if (mean < 0) return 0;
  if (mean === 0) return 1;
  if (mean > 1) return meanBins.length - 1;
  return mean === 1 ? meanBins.length - 2 : 2 + Math.min(9, Math.floor(mean * 10));
}

function dropped(reason: DropReason): Verdict {
  return { kept: false, reason };
}
