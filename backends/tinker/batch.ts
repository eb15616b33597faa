import type { TrainSample } from '../../core/rl/batch.ts';
import type { LossSettings } from '../../core/spec/run-spec.ts';
import { type Aggregation, aggregationOf, correctedAdvantages } from '../../engine/index.ts';
import type { Datum, LossCall, LossReduction } from './types.ts';

/**
 * A batch in a server's words, with the gradient that the run's aggregation means. Losses here are linear in the advantages (for
 * a factor > 0), so what the server divides by is made good in them:
 *
 *     wanted             Σ_r f_r Σ_t m_t ℓ_t / Z                        (f, Z: engine/train/aggregate.ts)
 *     "sum"              Σ_r Σ_t ℓ_t                                     advantages × f_r / Z
 *     "sequence_mean"    1/N Σ_r Σ_t w_t ℓ_t / Σ_t w_t, weights w = m    advantages × f_r · N · Σ m / Z
 *
 * N counts the rows of all requests before the step. Rows without loss are left out: the server would count them.
 */
export interface ServerBatch {
  readonly data: readonly Datum[];
  readonly loss: LossCall;
  /** Which sample each datum is. */
  readonly rows: readonly number[];
}

export function policyBatch(
  samples: readonly TrainSample[],
  loss: LossSettings,
  reduction: LossReduction,
): ServerBatch {
  if (loss.type === 'cross_entropy') return supervisedBatch(samples, reduction, loss);
  const rows = rowsWithLoss(samples);
  const factors = rescaled(samples, rows, aggregationOf(samples, loss), reduction);
  const { advantageTau = 1 } = loss;
  const data = rows.map((row, i) =>
    policyDatum(samples[row]!, correctedAdvantages(samples[row]!, advantageTau), factors[i]!, reduction),
  );
  return { data, loss: lossCall(loss), rows };
}

/** −Σ m ℓ / Σ m: the supervised loss of a warm-up. */
export function supervisedBatch(
  samples: readonly TrainSample[],
  reduction: LossReduction,
  loss: Pick<LossSettings, 'aggregation' | 'maxTokens'> = { aggregation: 'token' },
): ServerBatch {
  const rows = rowsWithLoss(samples);
  const factors = rescaled(samples, rows, aggregationOf(samples, loss), reduction);
  if (reduction === 'sum') {
    const data = rows.map((row, i) => supervisedDatum(samples[row]!, factors[i]!));
    return { data, loss: { lossFn: 'cross_entropy', config: null }, rows };
  }
  // There a row's weights cancel out of its mean. With both bounds at 1, cispo is sg(1) · A · ℓ: cross-entropy with advantages,
  // which do not cancel.
  const data = rows.map((row, i) => {
    const sample = samples[row]!;
    const advantages = sample.lossMask.map(() => 1);
    return policyDatum({ ...sample, behaviorLogprobs: advantages.map(() => 0) }, advantages, factors[i]!, reduction);
  });
  return { data, loss: { lossFn: 'cispo', config: { clip_low_threshold: 1, clip_high_threshold: 1 } }, rows };
}

/** Whether every number can be sent. */
export function isFinite(data: readonly Datum[]): boolean {
  return data.every(({ inputs }) => Object.values(inputs).every((tensor) => tensor.data.every(Number.isFinite)));
}

/** What of a loss no server of the Tinker API computes, in words; null where it does. */
export function missingLoss({ type, maskLow, maskHigh, teacherTau = 0 }: LossSettings): string | null {
  if (teacherTau > 0) return 'a teacher in the loss (teacher_tau)';
  if (type === 'cross_entropy') return null;
  if (type === 'cispo' || type === 'grpo') return null;
  if (type !== 'importance_sampling') return `the loss "${type}"`;
  return (maskLow ?? 0) > 0 || maskHigh != null ? 'a mask of importance_sampling (mask_low, mask_high)' : null;
}

function lossCall({ type, clipLow = 0, clipHigh }: LossSettings): LossCall {
  const config = { clip_low_threshold: clipLow, clip_high_threshold: clipHigh };
  if (type === 'cispo') return { lossFn: 'cispo', config };
  if (type === 'grpo') return { lossFn: 'ppo', config };
  return { lossFn: 'importance_sampling', config: null };
}

function rowsWithLoss(samples: readonly TrainSample[]): number[] {
  return samples.flatMap(({ lossMask }, row) => (lossMask.some((mask) => mask > 0) ? [row] : []));
}

function rescaled(
  samples: readonly TrainSample[],
  rows: readonly number[],
  { factors, normalizer }: Aggregation,
  reduction: LossReduction,
): number[] {
  return rows.map((row) => {
    const wanted = factors[row]! / normalizer;
    if (reduction === 'sum') return wanted;
    return wanted * rows.length * samples[row]!.lossMask.reduce((sum, mask) => sum + mask, 0);
  });
}

/** Targets are the next tokens, so everything that speaks of token t stands at t − 1. */
function policyDatum(
  { tokenIds, lossMask, behaviorLogprobs }: TrainSample,
  advantages: readonly number[],
  factor: number,
  reduction: LossReduction,
): Datum {
  const mask = lossMask.slice(1);
  return {
    tokens: tokenIds.slice(0, -1),
    inputs: {
      target_tokens: { dtype: 'int64', data: tokenIds.slice(1) },
      logprobs: { dtype: 'float32', data: mask.map((m, i) => (m > 0 ? behaviorLogprobs[i + 1]! : 0)) },
      // Where a server sums, an advantage of 0 is what keeps a token out; the hosted one takes no weights beside them.
      advantages: {
        dtype: 'float32',
        data: mask.map((m, i) => (m > 0 ? advantages[i + 1]! * factor * (reduction === 'sum' ? m : 1) : 0)),
      },
      ...(reduction === 'sum' ? {} : { weights: { dtype: 'float32' as const, data: mask } }),
    },
  };
}

function supervisedDatum({ tokenIds, lossMask }: TrainSample, factor: number): Datum {
  return {
    tokens: tokenIds.slice(0, -1),
    inputs: {
      target_tokens: { dtype: 'int64', data: tokenIds.slice(1) },
      weights: { dtype: 'float32', data: lossMask.slice(1).map((mask) => mask * factor) },
    },
  };
}

/** What the SDK puts into one request at most. */
const datumsMax = 1024;
const requestBytesMax = 5_000_000;
/** A token in bytes: itself, its target, and three numbers of four bytes. */
const bytesPerToken = 24;

/** Parts that a server takes, in order. */
export function inRequests(data: readonly Datum[]): Datum[][] {
  const requests: Datum[][] = [];
  let bytes = Infinity;
  for (const datum of data) {
    const size = datum.tokens.length * bytesPerToken;
    if (bytes + size > requestBytesMax || requests.at(-1)!.length >= datumsMax) {
      requests.push([]);
      bytes = 0;
    }
    requests.at(-1)!.push(datum);
    bytes += size;
  }
  return requests;
}
