import type { MaskedSample, RowFacts, TrainSample } from '../../core/rl/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
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
 * N counts the rows of all requests before the step. Rows without loss are left out: the server would count them. A loss that no
 * server has is sent as its gradient: Σ (∂L/∂ℓ_t) ℓ_t, which is linear in the log probabilities.
 */
export interface ServerBatch<Row extends MaskedSample = TrainSample> {
  readonly loss: LossCall;
  /** Those of the batch that are sent, in their order. */
  readonly rows: readonly number[];
  /** Of one of them; `place` is its place in `rows`. */
  readonly datum: (sample: Row, place: number) => Datum;
}

/** Of a loss that the server computes itself. `facts` are those of all rows. */
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

/** −Σ w ℓ with w = −∂L/∂ℓ: the gradient of any loss L. What the Tinker package's forward_backward_custom sends. */
export function gradientBatch(
  facts: readonly RowFacts[],
  gradients: readonly ArrayLike<number>[],
  reduction: LossReduction,
): ServerBatch {
  const rows = rowsWithLoss(facts);
  const factors = rows.map((row) => (reduction === 'sum' ? 1 : rows.length * facts[row]!.weight));
  return linearBatch(facts, ({ place, t }) => -gradients[rows[place]!]![t]! * factors[place]!, reduction);
}

/** The loss that is linear in log probabilities, as a server of this reduction knows it. */
export function linearLoss(reduction: LossReduction): LossCall {
  if (reduction === 'sum') return { lossFn: 'cross_entropy', config: null };
  // There a row's weights cancel out of its mean. With both bounds at 1, cispo is sg(1) · A · ℓ: cross-entropy with advantages,
  // which do not cancel.
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

/** What asks for log probabilities alone. */
export function scoreDatum({ tokenIds }: Pick<TrainSample, 'tokenIds'>): Datum {
  return supervisedDatum(
    tokenIds,
    tokenIds.map(() => 1),
  );
}

/** Whether every number can be sent. */
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

function supervisedDatum(tokenIds: readonly number[], weights: readonly number[]): Datum {
  return {
    tokens: tokenIds.slice(0, -1),
    inputs: {
      target_tokens: { dtype: 'int64', data: tokenIds.slice(1) },
      weights: { dtype: 'float32', data: weights.slice(1) },
    },
  };
}

/** What the SDK puts into one request at most. */
const datumsMax = 1024;
const requestBytesMax = 5_000_000;
/** A token in bytes: itself, its target, and three numbers of four bytes. */
const bytesPerToken = 24;

/** The places of rows, in as many requests as a server takes them in, in order. */
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
