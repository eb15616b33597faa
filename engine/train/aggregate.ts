import { RatchetError } from '../../core/errors.ts';
import type { RowFacts } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../core/settings/learning.ts';

/**
 * The sum that turns the losses of tokens into the loss of a batch: Σ over rows of factor · Σ mask · loss, over the
 * normalizer.
 */
export interface Aggregation {
  /** One for each row of the batch. */
  readonly factors: Float64Array;
  /** Covers the whole batch, so that the parts computed by micro-batches add up. */
  readonly normalizer: number;
}

/**
 * Formulas: LossSpec. Averages are over rollouts, in however many rows, including those without loss, as in TRL's GRPO
 * trainer. Rows without an assignment are a rollout each, and none if they have no loss.
 */
export function aggregationOf(
  rows: readonly RowFacts[],
  { aggregation, maxTokens = null }: Pick<LossSettings, 'aggregation' | 'maxTokens'>,
): Aggregation {
  const totals = rows.map(({ weight }) => weight);
  const tokensOf = new Map<number, number>();
  for (const [row, { rollout }] of rows.entries()) {
    if (rollout) tokensOf.set(rollout.index, (tokensOf.get(rollout.index) ?? 0) + totals[row]!);
  }
  const said = rows.find(({ rollout }) => rollout !== undefined)?.rollout?.of;
  const rolloutCount = said ?? totals.filter((tokens) => tokens > 0).length;
  const ones = new Float64Array(rows.length).fill(1);
  switch (aggregation) {
    case 'token':
      return { factors: ones, normalizer: total(totals) };
    case 'sequence':
      return {
        factors: Float64Array.from(rows, ({ rollout }, row) => {
          const tokens = rollout ? tokensOf.get(rollout.index)! : totals[row]!;
          return tokens > 0 ? 1 / tokens : 0;
        }),
        normalizer: rolloutCount,
      };
    case 'dr_grpo':
      if (maxTokens !== null) return { factors: ones, normalizer: rolloutCount * maxTokens };
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
