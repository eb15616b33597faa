import { type Rows, rowsOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { aggregationOf } from '../../engine/index.ts';

/** −Σ m ℓ, aggregated: over Σ m unless the loss says otherwise. `logprobs` are aligned with each row's tokens. */
export async function supervisedPassMetrics(
  batch: Rows<TrainSample>,
  logprobs: readonly ArrayLike<number>[],
  loss: Pick<LossSettings, 'aggregation' | 'maxTokens'> = { aggregation: 'token' },
): Promise<Record<string, number>> {
  const source = rowsOf(batch);
  const { factors, normalizer } = aggregationOf(source.rows, loss);
  let [total, tokens] = [0, 0];
  for (const row of source.rows.keys()) {
    const [{ lossMask }] = (await source.read([row])) as [TrainSample];
    for (const [t, mask] of lossMask.entries()) {
      if (mask === 0) continue;
      total -= mask * factors[row]! * logprobs[row]![t]!;
      tokens += mask;
    }
  }
  return { loss: tokens === 0 ? 0 : total / normalizer, token_count: tokens };
}

/** Why a step with these metrics must not be kept; null when it may. */
export function refusalOf(metrics: Readonly<Record<string, number>>): string | null {
  if (metrics['token_count'] === 0) return 'no token of the batch carries loss';
  if (metrics['grad_norm'] === 0) return 'the gradient is 0: nothing in the batch says which way to go';
  const strange = Object.entries(metrics).find(([, value]) => !Number.isFinite(value));
  return strange === undefined ? null : `the metric ${strange[0]} is ${String(strange[1])}`;
}
