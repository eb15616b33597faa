import type { MaskedSample, RowFacts, TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { type Aggregation, aggregationOf, correctedAdvantages } from '../../engine/index.ts';
import type { ServerLoss } from './server-facts.ts';
import type { Datum, LossCall } from './types.ts';

/**
 * A batch in a server's form, with the gradient of the run's aggregation. Losses here are linear in the advantages (for a
 * factor > 0), so advantages are rescaled to undo the server's divisor:
 *
 *     wanted             Σ_r f_r Σ_t m_t ℓ_t / Z                        (f, Z: engine/train/aggregate.ts)
 *     "sum"              Σ_r Σ_t ℓ_t                                     advantages × f_r / Z
 *     "row_mean"         1/N Σ_r Σ_t ℓ_t                                 advantages × f_r · N / Z
 *     "token_mean"       Σ_r Σ_t w_t ℓ_t / Σ_r Σ_t w_t, w = m            advantages × f_r · ΣΣ m / Z
 *     "sequence_mean"    1/N Σ_r Σ_t w_t ℓ_t / Σ_t w_t, w = m            advantages × f_r · N · Σ m / Z
 *
 * N and the sums count the rows of all requests before the step, or those of the row's own request (`over`). Rows without
 * loss are left out: the server would count them. A loss that no server has is sent as its gradient: Σ (∂L/∂ℓ_t) ℓ_t,
 * which is linear in the log probabilities.
 */
export interface ServerBatch<Row extends MaskedSample = TrainSample> {
  readonly loss: LossCall;
  /** Rows of the batch to send, in order. */
  readonly rows: readonly number[];
  /** Builds the datum of one row; `place` is its index in `rows`. */
  readonly datum: (sample: Row, place: number) => Datum;
}

/** A batch for a loss that the server computes itself. `facts` are those of all rows. */
export function policyBatch(facts: readonly RowFacts[], loss: LossSettings, server: ServerLoss): ServerBatch {
  if (loss.type === 'cross_entropy') return supervisedBatch(facts, server, loss);
  const rows = rowsWithLoss(facts);
  const factors = rescaled(facts, rows, aggregationOf(facts, loss), server);
  const { advantageTau = 1 } = loss;
  return {
    loss: lossCall(loss),
    rows,
    datum: (sample, place) => policyDatum(sample, correctedAdvantages(sample, advantageTau), factors[place]!, server),
  };
}

/** −Σ m ℓ / Σ m: the supervised loss of a warm-up. */
export function supervisedBatch(
  facts: readonly RowFacts[],
  server: ServerLoss,
  loss: Pick<LossSettings, 'aggregation' | 'maxTokens'> = { aggregation: 'token' },
): ServerBatch {
  const factors = rescaled(facts, rowsWithLoss(facts), aggregationOf(facts, loss), server);
  return linearBatch(facts, ({ mask, place }) => mask * factors[place]!, server);
}

/** −Σ w ℓ with w = −∂L/∂ℓ: the gradient of any loss L, as in the Tinker package's forward_backward_custom. */
export function gradientBatch(
  facts: readonly RowFacts[],
  gradients: readonly ArrayLike<number>[],
  server: ServerLoss,
): ServerBatch {
  const rows = rowsWithLoss(facts);
  const factors = divisors(facts, rows, server);
  return linearBatch(facts, ({ place, t }) => -gradients[rows[place]!]![t]! * factors[place]!, server);
}

/** The loss that is linear in log probabilities, by what the server's losses are linear in. */
export function linearLoss(linearIn: ServerLoss['linearIn']): LossCall {
  if (linearIn === 'weights') return { lossFn: 'cross_entropy', config: null };
  // Weights cancel out in the means of such a server. If both bounds are 1, cispo is sg(1) · A · ℓ: cross-entropy with
  // advantages, which do not cancel.
  return { lossFn: 'cispo', config: { clip_low_threshold: 1, clip_high_threshold: 1 } };
}

/** `weightOf` gives a token's weight by its position, its mask, and the place of its row among those with loss. */
function linearBatch(
  facts: readonly RowFacts[],
  weightOf: (token: { readonly place: number; readonly t: number; readonly mask: number }) => number,
  server: ServerLoss,
): ServerBatch {
  const datum: ServerBatch['datum'] = (sample, place) => {
    const { tokenIds, lossMask } = sample;
    const weights = lossMask.map((mask, t) => (mask === 0 ? 0 : weightOf({ place, t, mask })));
    if (server.linearIn === 'advantages') {
      const advantages = weights.map((weight, t) => (weight === 0 ? 0 : weight / lossMask[t]!));
      return policyDatum({ ...sample, behaviorLogprobs: lossMask.map(() => 0) }, advantages, 1, server);
    }
    return supervisedDatum(tokenIds, weights);
  };
  return { loss: linearLoss(server.linearIn), rows: rowsWithLoss(facts), datum };
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

/** A policy loss in the words of the API. */
export function lossCall({ type, clipLow = 0, clipHigh }: LossSettings): LossCall {
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
  server: ServerLoss,
): number[] {
  const undone = divisors(facts, rows, server);
  return rows.map((row, place) => (factors[row]! / normalizer) * undone[place]!);
}

/** What the server divides each row's losses by. */
function divisors(
  facts: readonly RowFacts[],
  rows: readonly number[],
  { reduction, over }: ServerLoss,
): readonly number[] {
  const places = over === 'request' ? inRequests(rows.map((row) => facts[row]!)) : [[...rows.keys()]];
  const found: number[] = [];
  for (const together of places) {
    const total = together.reduce((sum, place) => sum + facts[rows[place]!]!.weight, 0);
    for (const place of together) {
      const { weight } = facts[rows[place]!]!;
      found.push({ sum: 1, row_mean: together.length, token_mean: total, sequence_mean: together.length * weight }[reduction]); // prettier-ignore
    }
  }
  return found;
}

/** Targets are the next tokens, so every value of token t is at t − 1. */
function policyDatum(
  { tokenIds, lossMask, behaviorLogprobs }: TrainSample,
  advantages: readonly number[],
  factor: number,
  server: ServerLoss,
): Datum {
  const mask = lossMask.slice(1);
  const isWeighed = server.linearIn === 'advantages';
  return {
    tokens: tokenIds.slice(0, -1),
    inputs: {
      target_tokens: { dtype: 'int64', data: tokenIds.slice(1) },
      logprobs: { dtype: 'float32', data: mask.map((m, i) => (m > 0 ? behaviorLogprobs[i + 1]! : 0)) },
      // An advantage of 0 keeps a token out of a server's sum; the hosted one accepts no weights beside advantages.
      advantages: {
        dtype: 'float32',
        data: mask.map((m, i) => (m > 0 ? advantages[i + 1]! * factor * (isWeighed ? 1 : m) : 0)),
      },
      ...(isWeighed ? { weights: { dtype: 'float32' as const, data: mask } } : {}),
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
