import { costOf, type RunCost } from '../core/rl/cost.ts';
import { type MetricsRow, readMetrics, rowKey } from './metrics.ts';
import { type RunPlace, storeOf } from './run-access.ts';
import { newestSpec } from './stored-spec.ts';

/** What a run has cost, by the rows of all its lineages; null where nothing was counted yet. */
export async function costOfRun(place: RunPlace): Promise<RunCost | null> {
  const [rows, spec] = await Promise.all([readMetrics(storeOf(place)), newestSpec(place)]);
  return costOf(sumsOf(rows), spec.cost?.currency);
}

/** The sum of every metric; of a row that was written twice once. */
export function sumsOf(rows: readonly MetricsRow[]): Map<string, number> {
  const sums = new Map<string, number>();
  for (const row of new Map(rows.map((one) => [rowKey(one), one])).values())
    for (const [name, value] of Object.entries(row))
      if (typeof value === 'number') sums.set(name, (sums.get(name) ?? 0) + value);
  return sums;
}
