import type { TrainSample } from '../../core/rl/batch.ts';
import type { LossSettings } from '../../core/spec/run-spec.ts';
import { aggregationOf, correctedAdvantages } from '../../engine/index.ts';

/**
 * Metrics of a step from the logprobs that the server gave before it, by the names and meanings of the embedded engine
 * (`engine/train/types.ts`). `logprobs` are of each row's tokens from the second on; null for a row without loss. Entropy is not
 * known from here, and the gradient's norm only where the server tells it.
 */
export function policyPassMetrics(
  samples: readonly TrainSample[],
  logprobs: readonly (readonly number[] | null)[],
  loss: LossSettings,
): Record<string, number> {
  const { factors, normalizer } = aggregationOf(samples, loss);
  const { type, clipLow = 0, clipHigh } = loss;
  let [total, tokens, k3, low, high, ratios, furthest] = [0, 0, 0, 0, 0, 0, 0];
  for (const [row, sample] of samples.entries()) {
    const found = logprobs[row];
    if (!found) continue;
    const advantages = correctedAdvantages(sample, loss.advantageTau ?? 1);
    for (const [t, mask] of sample.lossMask.entries()) {
      if (mask === 0 || t === 0) continue;
      const [logprob, advantage] = [found[t - 1]!, advantages[t]!];
      const difference = logprob - sample.behaviorLogprobs[t]!;
      const ratio = Math.exp(difference);
      const clipped = Math.max(clipLow, Math.min(clipHigh, ratio));
      const isHigh = type === 'cispo' ? ratio > clipHigh : type === 'grpo' && advantage > 0 && ratio > clipHigh;
      const isLow = type === 'grpo' && advantage < 0 && ratio < clipLow;
      const value =
        type === 'cross_entropy'
          ? -logprob
          : type === 'cispo'
            ? -clipped * advantage * logprob
            : type === 'grpo'
              ? -Math.min(ratio * advantage, clipped * advantage)
              : -ratio * advantage;
      total += (mask * factors[row]! * value) / normalizer;
      tokens += mask;
      k3 += mask * (ratio - 1 - difference);
      ratios += mask * ratio;
      high += isHigh ? mask : 0;
      low += isLow ? mask : 0;
      furthest = Number.isNaN(difference) ? NaN : Math.max(furthest, Math.abs(difference));
    }
  }
  const mean = (sum: number): number => (tokens === 0 ? 0 : sum / tokens);
  return {
    loss: total,
    token_count: tokens,
    mismatch_kl: mean(k3),
    clip_fraction: mean(low + high),
    clip_fraction_low: mean(low),
    clip_fraction_high: mean(high),
    ratio_mean: mean(ratios),
    max_logprob_difference: furthest,
  };
}

/** −Σ m ℓ / Σ m. */
export function supervisedPassMetrics(
  samples: readonly TrainSample[],
  logprobs: readonly (readonly number[] | null)[],
): Record<string, number> {
  let [total, tokens] = [0, 0];
  for (const [row, { lossMask }] of samples.entries()) {
    for (const [t, mask] of lossMask.entries()) {
      if (mask === 0 || t === 0) continue;
      total -= mask * (logprobs[row]?.[t - 1] ?? 0);
      tokens += mask;
    }
  }
  return { loss: tokens === 0 ? 0 : total / tokens, token_count: tokens };
}

/** Why a step with these metrics must not be kept; null when it may. */
export function refusalOf(metrics: Readonly<Record<string, number>>): string | null {
  if (metrics['token_count'] === 0) return 'no token of the batch carries loss';
  if (metrics['grad_norm'] === 0) return 'the gradient is 0: nothing in the batch says which way to go';
  const strange = Object.entries(metrics).find(([, value]) => !Number.isFinite(value));
  return strange === undefined ? null : `the metric ${strange[0]} is ${String(strange[1])}`;
}
