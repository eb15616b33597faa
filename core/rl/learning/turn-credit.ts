import { RatchetError } from '../../errors.ts';
import type { AdvantageKind } from '../../settings/learning.ts';
import { groupAdvantages } from './advantage.ts';
import type { ScoredGroup, ScoredRollout, Turn } from '../rollout/rollout.ts';

/** Advantages of turns relative to those of sibling rollouts, in environments that reward turns. */

/** Settings of the run file (`[trainer.advantage] turns`, `discount`). */
export interface TurnCredit {
  readonly by: 'returns' | 'process';
  /** γ, above 0 and at most 1. */
  readonly discount: number;
}

/** Credit of a rollout: one advantage, or one for each sampled token, turn after turn. */
export type Credit = number | readonly number[];

/**
 * Advantages of the turns of one group, over the rewarded rollouts. r_{i,k} is the reward of turn k of rollout i; the last
 * turn gets the rest of the rollout's reward, so that they add up to it. A(·) is the advantage of the run (`groupAdvantages`).
 *
 *     returns   G_{i,k} = Σ_{j ≥ k} γ^(j−k) r_{i,j}, A over the G of the same k of all rollouts that have a turn k: a turn is compared with
 *               turns of the same index. The returns are verl's (`compute_reinforce_plus_plus_outcome_advantage`,
 *               trainer/ppo/core_algos.py) of rewards at the ends of turns.
 *     process   Σ_{j ≥ k} γ^(j−k) A over the rewards of all turns of the group (Shao et al. 2024, DeepSeekMath, §4.1.3: GRPO with process
 *               supervision, γ = 1)
 *
 * Aligned with the group's rollouts; empty without a reward.
 */
export function turnAdvantages(
  group: ScoredGroup,
  kind: AdvantageKind,
  { by, discount }: TurnCredit,
): (readonly number[])[] {
  const rewards = group.rollouts.map(turnRewards);
  if (by === 'process') {
    const all = groupAdvantages(rewards.flat(), kind).values();
    return rewards.map((turns) =>
      returns(
        turns.map(() => all.next().value ?? 0),
        discount,
      ),
    );
  }
  const sums = rewards.map((turns) => returns(turns, discount));
  const most = Math.max(0, ...sums.map(({ length }) => length));
  const byTurn = Array.from({ length: most }, (_, k) =>
    groupAdvantages(
      sums.map((turns) => turns[k] ?? null),
      kind,
    ),
  );
  return sums.map((turns, i) => turns.map((_, k) => byTurn[k]![i]!));
}

/** Discounted sums of the rewards from each on: each further one is multiplied by γ again. */
export function returns(rewards: readonly number[], discount: number): number[] {
  const sums = [...rewards];
  for (let k = sums.length - 2; k >= 0; k--) sums[k] = sums[k]! + discount * sums[k + 1]!;
  return sums;
}

/** The environment's rewards of turns, and for the last turn also the rest of the rollout's reward. */
function turnRewards({ group, index, reward, turns, turnRewards: given }: ScoredRollout): number[] {
  if (reward === null || turns.length === 0) return [];
  if (given !== undefined && given.length !== turns.length) {
    throw new RatchetError(
      'Unsupported',
      `Rollout ${group}/${index} has ${turns.length} turns: expected as many rewards of turns, or none; its environment gave ${given.length}.`,
    );
  }
  const own = turns.map((_, k) => given?.[k] ?? 0);
  const left = reward - own.reduce((sum, value) => sum + value, 0);
  own[own.length - 1] = own.at(-1)! + left;
  return own;
}

/** Gives each turn's advantage to all its tokens. */
export function ofTokens(turns: readonly Pick<Turn, 'tokenIds'>[], advantages: readonly number[]): number[] {
  return turns.flatMap(({ tokenIds }, k) => tokenIds.map(() => advantages[k]!));
}

/** One number for a rollout's credit: the mean of its tokens' values other than 0 (prime-rl's `scalar_advantage`). */
export function scalarOf(credit: Credit): number {
  if (typeof credit === 'number') return credit;
  const counted = credit.filter((value) => value !== 0);
  return counted.length === 0 ? 0 : counted.reduce((sum, value) => sum + value, 0) / counted.length;
}
