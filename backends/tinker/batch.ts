import type { MaskedSample, RowFacts, TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { type Aggregation, aggregationOf, correctedAdvantages } from '../../engine/index.ts';
import type { Datum, LossCall, LossReduction } from './types.ts';

/**
 * A batch in a server's form, with the gradient of the run's aggregation. Losses here are linear in the advantages (for a
 * factor > 0), so advantages are rescaled to undo the server's divisor:
 *
 *     wanted             Σ_r f_r Σ_t m_t ℓ_t / Z                        (f, Z: engine/train/aggregate.ts)
 *     "sum"              Σ_r Σ_t ℓ_t                                     advantages × f_r / Z
 *     "sequence_mean"    1/N Σ_r Σ_t w_t ℓ_t / Σ_t w_t, weights w = m    advantages × f_r · N · Σ m / Z
 *
 * N counts the rows of all requests before the step. Rows without loss are left out: the server would count them. A loss that no
 * server has is sent as its gradient: Σ (∂L/∂ℓ_t) ℓ_t, which is linear in the log probabilities.
 */
export interface ServerBatch<Row extends MaskedSample = TrainSample> {
  readonly loss: LossCall;
  /** Rows of the batch to send, in order. */
  readonly rows: readonly number[];
  /** Builds the datum of one row; `place` is its index in `rows`. */
  readonly datum: (sample: Row, place: number) => Datum;
}

/** A batch for a loss that the server computes itself. `facts` are those of all rows. */
export function policyBatch(facts: readonly RowFacts[], loss: LossSettings, reduction: LossReduction): ServerBatch {
  if (loss.type === 'cross_entropy') return supervisedBatch(facts, reduction, loss);
  const rows = rowsWithLoss(facts);
  const factors = rescaled(facts, rows, aggregationOf(facts, loss), reduction);
  const { advantageTau = 1 } = loss;
  return {
    loss: lossCall(loss),
    rows,
    datum: (sample, place) =>
      policyDatum(sample, correctedAdvantages(sample, advantageTau), factors[place]!, reduction),
  };
}

/** −Σ m ℓ / Σ m: the supervised loss of a warm-up. */
export function supervisedBatch(
  facts: readonly RowFacts[],
  reduction: LossReduction,
  loss: Pick<LossSettings, 'aggregation' | 'maxTokens'> = { aggregation: 'token' },
): ServerBatch {
  const factors = rescaled(facts, rowsWithLoss(facts), aggregationOf(facts, loss), reduction);
  return linearBatch(facts, ({ mask, place }) => mask * factors[place]!, reduction);
}

/** −Σ w ℓ with w = −∂L/∂ℓ: the gradient of any loss L, as in the Tinker package's forward_backward_custom. */
export function gradientBatch(
  facts: readonly RowFacts[],
  gradients: readonly ArrayLike<number>[],
  reduction: LossReduction,
): ServerBatch {
  const rows = rowsWithLoss(facts);
  const factors = rows.map((row) => (reduction === 'sum' ? 1 : rows.length * facts[row]!.weight));
  return linearBatch(facts, ({ place, t }) => -gradients[rows[place]!]![t]! * factors[place]!, reduction);
}

/** The loss that is linear in log probabilities, by a server's reduction. */
export function linearLoss(reduction: LossReduction): LossCall {
  if (reduction === 'sum') return { lossFn: 'cross_entropy', config: null };
  // A row's weights cancel out in such a mean. If both bounds are 1, cispo is sg(1) · A · ℓ: cross-entropy with
  // advantages, which do not cancel.
  return { lossFn: 'cispo', config: { clip_low_threshold: 1, clip_high_threshold: 1 } };
}

/** `weightOf` gives a token's weight by its position, its mask, and the place of its row among those with loss. */
function linearBatch(
  facts: readonly RowFacts[],
  weightOf: (token: { readonly place: number; readonly t: number; readonly mask: number }) => number,
  reduction: LossReduction,
): ServerBatch {
  const datum: ServerBatch['datum'] = (sample, place) => {
    const { tokenIds, lossMask } = sample;
    const weights = lossMask.map((mask, t) => (mask === 0 ? 0 : weightOf({ place, t, mask })));
    if (reduction !== 'sum') {
      const advantages = weights.map((weight, t) => (weight === 0 ? 0 : weight / lossMask[t]!));
      return policyDatum({ ...sample, behaviorLogprobs: lossMask.map(() => 0) }, advantages, 1, reduction);
    }
    return supervisedDatum(tokenIds, weights);
  };
  return { loss: linearLoss(reduction), rows: rowsWithLoss(facts), datum };
}

/** A datum that requests log probabilities only. */
export function scoreDatum({ tokenIds }: Pick<TrainSample, 'tokenIds'>): Datum {
  return supervisedDatum(
    tokenIds,
    tokenIds.map(() => 1),
  );
}

export function isFinite(data: readonly Datum[]): boolean {
  return data.every(({ inputs }) => Object.values(inputs).every((tensor) => tensor.data.every(Number.isFinite)));
}

function lossCall({ type, clipLow = 0, clipHigh }: LossSettings): LossCall {
  const config = { clip_low_threshold: clipLow, clip_high_threshold: clipHigh };
  if (type === 'cispo') return { lossFn: 'cispo', config };
  if (type === 'grpo') return { lossFn: 'ppo', config };
  return { lossFn: 'importance_sampling', config: null };
}

function rowsWithLoss(facts: readonly RowFacts[]): number[] {
  return facts.flatMap(({ counted }, row) => (counted > 0 ? [row] : []));
}

function rescaled(
  facts: readonly RowFacts[],
  rows: readonly number[],
  { factors, normalizer }: Aggregation,
  reduction: LossReduction,
): number[] {
  return rows.map((row) => {
    const wanted = factors[row]! / normalizer;
    if (reduction === 'sum') return wanted;
    return wanted * rows.length * facts[row]!.weight;
  });
}

/** Targets are the next tokens, so every value of token t is at t − 1. */
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
      // An advantage of 0 keeps a token out of a server's sum; the hosted one accepts no weights beside advantages.
      advantages: {
        dtype: 'float32',
        data: mask.map((m, i) => (m > 0 ? advantages[i + 1]! * factor * (reduction === 'sum' ? m : 1) : 0)),
      },
      ...(reduction === 'sum' ? {} : { weights: { dtype: 'float32' as const, data: mask } }),
    },
  };
}

function supervisedDatum(tokenIds: readonly number[], weights: readonly number[]): Datum {
  return {
    tokens: tokenIds.slice(0, -1),
    inputs: {
      target_tokens: { dtype: 'int64', data: tokenIds.slice(1) },
      weights: { dtype: 'float32', data: weights.slice(1) },
    },
  };
}

/** The SDK's limit for one request. */
const datumsMax = 1024;
const requestBytesMax = 5_000_000;
/** A token in bytes: itself, its target, and three numbers of four bytes. */
const bytesPerToken = 24;

/** Groups the indices of rows into requests of a size that a server accepts, in order. */
export function inRequests(rows: readonly Pick<RowFacts, 'tokens'>[]): number[][] {
  const requests: number[][] = [];
  let bytes = Infinity;
  for (const [place, { tokens }] of rows.entries()) {
    const size = (tokens - 1) * bytesPerToken;
    if (bytes + size > requestBytesMax || requests.at(-1)!.length >= datumsMax) {
      requests.push([]);
      bytes = 0;
    }
    requests.at(-1)!.push(place);
    bytes += size;
  }
  return requests;
}
