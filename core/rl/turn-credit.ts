import { RatchetError } from '../errors.ts';
import { type AdvantageKind, groupAdvantages } from './advantage.ts';
import type { ScoredGroup, ScoredRollout, Turn } from './rollout.ts';

/** How much better the turns of a rollout did than those of its siblings, where environments reward turns. */

/** What a config says of it (`[trainer.advantage] turns`, `discount`). */
export interface TurnCredit {
  readonly by: 'returns' | 'process';
  /** γ, above 0 and at most 1. */
  readonly discount: number;
}

/** Of a rollout: one advantage, or one of each sampled token, turn after turn. */
export type Credit = number | readonly number[];

/**
 * Advantages of the turns of one group, over the rollouts that have a reward. r_{i,k} is the reward of turn k of rollout i; what of the
 * rollout's reward no turn has belongs to its last one, so that they add up to it. A(·) is the advantage of the run (`groupAdvantages`).
 *
 *     returns   G_{i,k} = Σ_{j ≥ k} γ^(j−k) r_{i,j}, A over the G of the same k of all rollouts that have a turn k: a turn is compared with
 *               the turns in its place. The returns are verl's (`compute_reinforce_plus_plus_outcome_advantage`,
 *               trainer/ppo/core_algos.py) of rewards that stand at the ends of turns.
 *     process   Σ_{j ≥ k} γ^(j−k) A over the rewards of all turns of the group (Shao et al. 2024, DeepSeekMath, §4.1.3: GRPO with process
 *               supervision, γ = 1)
 *
 * Aligned with the group's rollouts; empty where there is no reward.
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

/** Σ of the rewards from each on, each further one times γ again. */
export function returns(rewards: readonly number[], discount: number): number[] {
  const sums = [...rewards];
  for (let k = sums.length - 2; k >= 0; k--) sums[k] = sums[k]! + discount * sums[k + 1]!;
  return sums;
}

/** Those of its environment, and at the last turn what is left of the rollout's reward. */
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

/** The advantage of each turn as that of each of its tokens. */
export function ofTokens(turns: readonly Pick<Turn, 'tokenIds'>[], advantages: readonly number[]): number[] {
  return turns.flatMap(({ tokenIds }, k) => tokenIds.map(() => advantages[k]!));
}

/** What stands for a rollout's advantage where one number is asked for: the mean of its tokens' that are not 0 (prime-rl's `scalar_advantage`). */
export function scalarOf(credit: Credit): number {
  if (typeof credit === 'number') return credit;
  const counted = credit.filter((value) => value !== 0);
  return counted.length === 0 ? 0 : counted.reduce((sum, value) => sum + value, 0) / counted.length;
}
