import type { CorrectionSettings, DivergenceName, OldLogprobs } from '../../settings/learning.ts';
import type { PackedRow, TrainSample } from './batch.ts';

/** Corrects for tokens that were sampled from another distribution than the one in training. */

/** A row for the trainer's loss. */
interface CorrectedRow {
  readonly sample: TrainSample;
  /** null if the engine corrects the row. */
  readonly tally: CorrectionTally | null;
}

/** Effect of a correction on a row's tokens that count. */
export interface CorrectionTally {
  readonly tokens: number;
  /** Sum of the factors on their advantages. */
  readonly weight: number;
  readonly masked: number;
}

/** Correction settings, and the log probabilities that the loss takes its ratio to. */
type Correction = CorrectionSettings & { readonly oldLogprobs: OldLogprobs };

type Bounds = readonly [low: number, high: number];

/** Whether the step needs the policy's log probabilities at its start, even if servers reported theirs. */
export function asksForProximal(correction: Correction): boolean {
  return correction.oldLogprobs === 'trainer' || hasMasks(correction);
}

/**
 * Let q be the sampler's probability of a token, π the policy's at the start of the step (the proximal one), and π_old the
 * denominator of the loss's ratio (`oldLogprobs`: π, or the policy's as reported by its server):
 *
 *     weight     w = π_old / q, of a token or the product over its row, clipped to weightMin … weightMax; a factor
 *                on the advantage and on the teacher's term
 *     token      tokens whose π / q is outside the bounds get the weight 0
 *     sequence   rows whose product of π / q does
 *     geometric  rows whose exp(mean of ln π − ln q) does
 *     extreme    rows whose least or largest π / q of a token does
 *     divergence tokens, or rows by sum, mean or largest, whose k2 = (ln r)² / 2 or k3 = r − 1 − ln r, r = π / q, is above its bound
 *
 * A token with the weight 0 still counts in the loss's denominator. The same corrections exist in verl
 * (trainer/ppo/rollout_corr_helper.py: `rollout_is` and `rollout_rs`, decoupled and bypass mode) and TRL
 * (trainer/grpo_trainer.py, `vllm_importance_sampling_mode`); only verl removes masked tokens from the denominator as well.
 * `extreme` is prime-rl 0.4's mask of whole sequences.
 */
export function correctRow(row: PackedRow, proximal: ArrayLike<number> | null, correction: Correction): CorrectedRow {
  const old = oldLogprobs(row, proximal, correction);
  const told = row.behaviorLogprobs ?? row.samplingLogprobs;
  const sampled = told === undefined || told === old ? {} : { sampledLogprobs: told };
  if (isDefault(correction)) return { sample: { ...row, behaviorLogprobs: old, ...sampled }, tally: null };
  const { samplingLogprobs, ...rest } = row; // their effect is now part of the advantages
  const drawn = samplingLogprobs ?? row.behaviorLogprobs ?? old;
  const counted = row.lossMask.flatMap((mask, t) => (mask > 0 ? [t] : []));
  const weights = weightsOf(old, drawn, counted, correction);
  const kept = proximal === null ? null : keptTokens(proximal, drawn, counted, correction);
  const advantages = row.lossMask.map(() => 0);
  const correctionWeights = row.lossMask.map(() => 0);
  let sum = 0;
  for (const t of counted) {
    const weight = kept === null || kept.has(t) ? weights(t) : 0;
    advantages[t] = row.advantages[t]! * weight;
    correctionWeights[t] = weight;
    sum += weight;
  }
  return {
    sample: { ...rest, behaviorLogprobs: old, ...sampled, advantages, correctionWeights },
    tally: { tokens: counted.length, weight: sum, masked: kept === null ? 0 : counted.length - kept.size },
  };
}

/** Metrics over all rows; empty if the engine corrected them. */
export function correctionMetrics(tallies: readonly CorrectionTally[]): Record<string, number> {
  if (tallies.length === 0) return {};
  const total = (of: (tally: CorrectionTally) => number): number => tallies.reduce((sum, one) => sum + of(one), 0);
  const tokens = Math.max(
    1,
    total((tally) => tally.tokens),
  );
  return {
    'correction/weight': total(({ weight }) => weight) / tokens,
    'correction/masked_tokens': total(({ masked }) => masked) / tokens,
    'correction/masked_rows':
      total((tally) => Number(tally.tokens > 0 && tally.masked === tally.tokens)) / tallies.length,
  };
}

/**
 * Whether this is the engine's own correction: a weight per token, at most 2, for rows that were drawn from a changed
 * distribution.
 */
function isDefault(correction: Correction): boolean {
  const { oldLogprobs: old, weight, weightMin, weightMax } = correction;
  const isToken = weight === 'token' && weightMin === 0 && weightMax === defaultWeightMax;
  return old === 'sampler' && isToken && !hasMasks(correction);
}

/**
 * Largest weight of a token drawn from a changed distribution. Truncated importance sampling (Ionides 2008); the bound is that of
 * Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training.
 */
export const defaultWeightMax = 2;

function oldLogprobs(
  { lossMask, behaviorLogprobs }: PackedRow,
  proximal: ArrayLike<number> | null,
  { oldLogprobs: whose }: Correction,
): readonly number[] {
  if (behaviorLogprobs !== undefined && (whose === 'sampler' || proximal === null)) return behaviorLogprobs;
  return lossMask.map((mask, t) => (mask === 0 ? 0 : (proximal?.[t] ?? 0)));
}

function weightsOf(
  old: ArrayLike<number>,
  drawn: ArrayLike<number>,
  counted: readonly number[],
  { weight, weightMin, weightMax }: Correction,
): (t: number) => number {
  const cut = (logRatio: number): number => Math.max(weightMin, Math.min(weightMax, Math.exp(logRatio)));
  if (weight === 'none') return () => 1;
  if (weight === 'token') return (t) => cut(old[t]! - drawn[t]!);
  const whole = cut(sumOf(counted, (t) => old[t]! - drawn[t]!));
  return () => whole;
}

function hasMasks({ tokenMask, sequenceMask, geometricMask, extremeMask, divergenceMask = {} }: Correction): boolean {
  const bounds = [tokenMask, sequenceMask, geometricMask, extremeMask];
  return bounds.some((one) => one !== null) || Object.keys(divergenceMask).length > 0;
}

function keptTokens(
  proximal: ArrayLike<number>,
  drawn: ArrayLike<number>,
  counted: readonly number[],
  { tokenMask, sequenceMask, geometricMask, extremeMask, divergenceMask = {} }: Correction,
): ReadonlySet<number> {
  const ratio = (t: number): number => proximal[t]! - drawn[t]!;
  const isWithin = (logRatio: number, [low, high]: Bounds): boolean =>
    logRatio >= Math.log(low) && logRatio <= Math.log(high);
  const sum = sumOf(counted, ratio);
  const isRowKept =
    (sequenceMask === null || isWithin(sum, sequenceMask)) &&
    (geometricMask === null || isWithin(sum / counted.length, geometricMask)) &&
    (extremeMask === null || counted.every((t) => isWithin(ratio(t), extremeMask)));
  if (!isRowKept) return new Set();
  let kept = tokenMask === null ? [...counted] : counted.filter((t) => isWithin(ratio(t), tokenMask));
  for (const [name, most] of Object.entries(divergenceMask) as [DivergenceName, number][]) {
    const [, by, kind] = /^(token|seq_\w+)_(k\d)$/.exec(name)!;
    const of = (t: number): number => divergenceOf(ratio(t), kind as 'k2' | 'k3');
    if (by === 'token') kept = kept.filter((t) => of(t) <= most);
    else if (overRow(by as RowStatistic, counted.map(of)) > most) return new Set();
  }
  return new Set(kept);
}

/** verl's bound of a log ratio (`SAFETY_BOUND`). */
const logRatioMax = 20;

function divergenceOf(logRatio: number, kind: 'k2' | 'k3'): number {
  const bounded = Math.max(-logRatioMax, Math.min(logRatioMax, logRatio));
  return kind === 'k2' ? bounded ** 2 / 2 : Math.exp(bounded) - 1 - bounded;
}

type RowStatistic = 'seq_sum' | 'seq_mean' | 'seq_max';

function overRow(by: RowStatistic, values: readonly number[]): number {
  if (by === 'seq_max') return values.reduce((most, value) => Math.max(most, value), 0);
  const sum = values.reduce((total, value) => total + value, 0);
  return by === 'seq_sum' ? sum : sum / Math.max(1, values.length);
}

function sumOf(positions: readonly number[], of: (t: number) => number): number {
  return positions.reduce((sum, t) => sum + of(t), 0);
}
