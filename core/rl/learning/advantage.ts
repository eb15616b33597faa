import { RatchetError } from '../../errors.ts';
import type { CodeRef } from '../../settings/code.ts';
import type { AdvantageKind, AdvantageSettings } from '../../settings/learning.ts';
import type { ScoredGroup, ScoredRollout } from '../rollout/rollout.ts';
import type { Credit } from './turn-credit.ts';

/** Advantages of rollouts relative to their siblings. */

/** Added to the standard deviation, so that a group of nearly equal rewards is not blown up (TRL's GRPO trainer). */
const stdEpsilon = 1e-4;

/**
 * Group-relative advantages over the rewarded rollouts of one group, in the order given:
 *
 *     centered        A_i = r_i − mean(r)                          (Dr. GRPO, Liu et al. 2025; prime-rl's `grpo`)
 *     std_normalized  A_i = (r_i − mean(r)) / (std(r) + 1e-4)      (GRPO, Shao et al. 2024, §4.1)
 *     max_rl          A_i = (r_i − mean(r)) / mean(r), 0 where mean(r) ≤ 0   (MaxRL, arXiv:2602.02710; prime-rl's `max_rl`,
 *                                                                  orchestrator/algo/max_rl.py); for rewards that are not negative
 *
 * The deviation is the sample's, over n − 1, as TRL (trainer/grpo_trainer.py) and verifiers take it with torch's `std`.
 * A rollout without a reward (null, or no finite number) is not part of the baseline and has advantage 0.
 */
export function groupAdvantages(rewards: readonly (number | null)[], kind: AdvantageKind): number[] {
  const { count, mean, variance } = rewardMoments(rewards);
  if (variance === 0) return rewards.map(() => 0);
  const deviation = Math.sqrt((variance * count) / Math.max(1, count - 1));
  const scale = { centered: 1, std_normalized: 1 / (deviation + stdEpsilon), max_rl: mean > 0 ? 1 / mean : 0 }[kind];
  return rewards.map((reward) => (isReward(reward) ? (reward - mean) * scale : 0));
}

/** The file of a custom advantage; null for one of ours. */
export function codeOfAdvantage(advantage: AdvantageSettings): CodeRef | null {
  return typeof advantage === 'object' && 'import' in advantage ? advantage.import : null;
}

/** A group for an advantage function: the rewarded rollouts, in the order of the rewards. */
interface RewardedGroup {
  readonly environment: string;
  readonly exampleId: number;
  readonly rollouts: readonly ScoredRollout[];
}

/**
 * A user's own advantage: one finite number per reward, or a list with one per sampled token of the rollout, turn after
 * turn. Pure: packing a batch again gives the same batch.
 */
export type AdvantageFunction = (rewards: readonly number[], group: RewardedGroup) => readonly Credit[];

/** The advantages of a user's function, aligned with the group's rollouts; 0 without a reward. */
export function customAdvantages(group: ScoredGroup, advantage: AdvantageFunction): Credit[] {
  const rewarded = group.rollouts.filter(({ reward }) => reward !== null);
  const rewards = rewarded.map(({ reward }) => reward ?? 0);
  const { environment, exampleId } = group;
  const of = `for rewards [${rewards.join(', ')}]`;
  const given = called(() => advantage(rewards, { environment, exampleId, rollouts: rewarded }), of);
  const values: readonly unknown[] | null = Array.isArray(given) ? Array.from<unknown>(given) : null; // fills holes
  const isCredit = (value: unknown, i: number): value is Credit =>
    Number.isFinite(value) || isOfTokens(value, rewarded[i]!);
  if (values?.length !== rewards.length || !values.every(isCredit)) {
    const received = values
      ? `[${values.map((value) => (Array.isArray(value) ? `${value.length} values` : String(value))).join(', ')}]`
      : `a value of type ${typeof given}`;
    throw new RatchetError(
      'Unsupported',
      `The custom advantage must give ${rewards.length} finite numbers, one per reward, or in place of one a list with one per sampled token; ${of} it gave ${received}.`,
    );
  }
  const inOrder = values.values();
  return group.rollouts.map(({ reward }) => (reward === null ? 0 : (inOrder.next().value ?? 0)));
}

function isOfTokens(value: unknown, { turns }: ScoredRollout): boolean {
  const tokens = turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  return Array.isArray(value) && value.length === tokens && value.every((one) => Number.isFinite(one));
}

/** A pure function fails again on a repeated call: that is a refusal, not something to retry. */
function called(advantage: () => unknown, of: string): unknown {
  try {
    return advantage();
  } catch (cause) {
    throw new RatchetError('Unsupported', `The custom advantage failed ${of}: ${String(cause)}`, { cause });
  }
}

/**
 * Rewards count as equal if they differ by less than this, as a share of the largest: other orders of summation differ
 * by rounding.
 */
const equalShare = 1e-9;
/** Rounding error that remains if parts of a reward cancel out. */
const equalAmount = 1e-12;

function isReward(reward: number | null): reward is number {
  return reward !== null && Number.isFinite(reward);
}

/** Mean and population variance of the rewards there are; exactly the first value and 0 when all are equal but for rounding. */
export function rewardMoments(rewards: readonly (number | null)[]): {
  readonly count: number;
  readonly mean: number;
  readonly variance: number;
} {
  const present = rewards.filter(isReward);
  const [first] = present;
  if (first === undefined) return { count: 0, mean: 0, variance: 0 };
  const largest = present.reduce((most, reward) => Math.max(most, Math.abs(reward)), 0);
  const equal = Math.max(equalAmount, equalShare * largest);
  if (present.every((reward) => Math.abs(reward - first) <= equal))
    return { count: present.length, mean: first, variance: 0 };
  // Summing differences from the first keeps a group of equal rewards free of rounding.
  const mean = first + present.reduce((sum, reward) => sum + (reward - first), 0) / present.length;
  const variance = present.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / present.length;
  return { count: present.length, mean, variance };
}
