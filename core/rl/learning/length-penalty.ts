import type { ScoredGroup, ScoredRollout } from '../rollout/rollout.ts';
import { trajectoryRows } from '../rollout/trajectories.ts';

/**
 * Penalties for length, subtracted from a group's rewards before advantages are computed. Recorded rewards stay as they
 * were.
 */

/** prime-rl's `length_penalty` (orchestrator/algo/grpo.py): weights of three terms, each ≥ 0. */
interface LengthPenalty {
  readonly outputTokens: number;
  readonly inputTokens: number;
  readonly turns: number;
}

/** DAPO's soft overlong punishment (Yu et al. 2025, eq. 13; verl's reward manager `dapo`). */
interface OverlongPenalty {
  /** Tokens of an answer, and of those the last ones in which it is punished more and more. */
  readonly maxTokens: number;
  readonly buffer: number;
  /** Penalty at `maxTokens`. */
  readonly factor: number;
}

export interface LengthShaping {
  readonly lengthPenalty?: LengthPenalty | null;
  readonly overlongPenalty?: OverlongPenalty | null;
}

/**
 * The group with the rewards that its advantages are made of, over the rollouts that have one:
 *
 *     r'_i = r_i − f · clamp((o_i − (L − B)) / B, 0, ∞)                                            (overlong: L tokens, buffer B, factor f)
 *     r''_i = r'_i − mean(r') · (w_o · o_i / max(o) + w_in · in_i / max(in) + w_t · t_i / max(t))   (penalty; a maximum below 1 counts as 1)
 *
 * o = sampled tokens, in = tokens of its rows that were not sampled, t = turns.
 */
export function withLengthsCounted(group: ScoredGroup, { lengthPenalty, overlongPenalty }: LengthShaping): ScoredGroup {
  if (!lengthPenalty && !overlongPenalty) return group;
  const sizes = group.rollouts.map(sizeOf);
  const punished = group.rollouts.map(({ reward }, i) =>
    reward === null || !overlongPenalty ? reward : reward - overlongOf(sizes[i]!.outputTokens, overlongPenalty),
  );
  const rewards = lengthPenalty ? penalized(punished, sizes, lengthPenalty) : punished;
  return {
    ...group,
    rollouts: group.rollouts.map((one, i) => (one.reward === null ? one : { ...one, reward: rewards[i]! })),
  };
}

/** Penalty for an answer of so many tokens. */
export function overlongOf(tokens: number, { maxTokens, buffer, factor }: OverlongPenalty): number {
  return (Math.max(0, tokens - (maxTokens - buffer)) / buffer) * factor;
}

/** Lengths of a rollout, as its penalty counts them. */
interface RolloutSize {
  readonly outputTokens: number;
  readonly inputTokens: number;
  readonly turns: number;
}

export function penalized(
  rewards: readonly (number | null)[],
  sizes: readonly RolloutSize[],
  weights: LengthPenalty,
): (number | null)[] {
  const counted = sizes.filter((_, i) => rewards[i] !== null);
  const present = rewards.filter((reward) => reward !== null);
  const mean = present.reduce((sum, reward) => sum + reward, 0) / Math.max(1, present.length);
  const terms = (['outputTokens', 'inputTokens', 'turns'] as const).map((name) => {
    return { name, weight: weights[name], most: counted.reduce((most, size) => Math.max(most, size[name]), 1) };
  });
  const shareOf = (size: RolloutSize): number =>
    terms.reduce((sum, { name, weight, most }) => sum + (weight * size[name]) / most, 0);
  return rewards.map((reward, i) => (reward === null ? null : reward - mean * shareOf(sizes[i]!)));
}

function sizeOf({ turns }: ScoredRollout): RolloutSize {
  const outputTokens = turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  const total = trajectoryRows(turns, 'interleaved').reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  return { outputTokens, inputTokens: total - outputTokens, turns: turns.length };
}
