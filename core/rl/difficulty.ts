import type { DifficultyFilterSpec } from '../spec/run-spec.ts';
import { rewardMoments } from './advantage.ts';

/** Which groups are worth a gradient. */

export type DropReason = 'too_easy' | 'too_hard' | 'low_variance' | 'no_signal';

export type Verdict = { readonly kept: true } | { readonly kept: false; readonly reason: DropReason };

/**
 * Judges one group by the rewards of its rollouts (null = no reward, left out). It is kept when
 *
 *     min_reward ≤ mean ≤ max_reward   and   population variance ≥ min_reward_variance
 *
 * and, with online_difficulty_filtering, when its mean is neither exactly 0 nor exactly 1 (prime-rl v0.4,
 * orchestrator/buffer.py). A group whose rewards are all equal is never kept: its advantages are all 0. The mean is
 * judged first, because "too easy" tells the reader more than "no variance".
 */
export function judgeGroup(rewards: readonly (number | null)[], filter: DifficultyFilterSpec): Verdict {
  const { count, mean, variance } = rewardMoments(rewards);
  if (count === 0) return dropped('no_signal');
  if (mean > filter.maxReward || (filter.onlineDifficultyFiltering && mean === 1)) return dropped('too_easy');
  if (mean < filter.minReward || (filter.onlineDifficultyFiltering && mean === 0)) return dropped('too_hard');
  if (variance < filter.minRewardVariance) return dropped('low_variance');
  if (variance === 0) return dropped('no_signal');
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

function dropped(reason: DropReason): Verdict {
  return { kept: false, reason };
}
