import { RatchetError } from '../../core/errors.ts';
import type { LossSettings } from '../../core/spec/run-spec.ts';
import type { MaskedSample } from './pack.ts';

/** How the losses of tokens become the loss of a batch: Σ over rows of factor · Σ mask · loss, over the normalizer. */
export interface Aggregation {
  /** Of each row of the batch. */
  readonly factors: Float64Array;
  /** Of the whole batch, so that the parts computed by micro-batches add up. */
  readonly normalizer: number;
}

/** The formulas stand at LossSpec. A row is one sample; rows without loss are none. */
export function aggregationOf(
  samples: readonly MaskedSample[],
  { aggregation, maxTokens = null }: Pick<LossSettings, 'aggregation' | 'maxTokens'>,
): Aggregation {
  const totals = samples.map(({ lossMask }) => total(lossMask));
  const rowCount = totals.filter((tokens) => tokens > 0).length;
  const ones = new Float64Array(samples.length).fill(1);
  switch (aggregation) {
    case 'token':
      return { factors: ones, normalizer: total(totals) };
    case 'sequence':
      return { factors: Float64Array.from(totals, (tokens) => (tokens > 0 ? 1 / tokens : 0)), normalizer: rowCount };
    case 'dr_grpo':
      if (maxTokens !== null) return { factors: ones, normalizer: rowCount * maxTokens };
      throw new RatchetError(
        'Unsupported',
        'The aggregation "dr_grpo" divides by max_tokens: expected a number, got none.',
      );
    default:
      return aggregation satisfies never;
  }
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
