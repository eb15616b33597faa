import { costOf, type RunCost } from '../../core/rl/cost.ts';
import { readMetrics, rowKey } from './metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { type RunPlace, storeOf } from '../run-access.ts';
import { newestSpec } from '../forms/stored-spec.ts';

/** Cost of a run, from the rows of all its lineages; null when nothing was counted. */
export async function costOfRun(place: RunPlace): Promise<RunCost | null> {
  const [rows, spec] = await Promise.all([readMetrics(storeOf(place)), newestSpec(place)]);
  return costOf(sumsOf(rows), spec.cost?.currency);
}

/** Sums of every metric; a row that was written twice counts once. */
export function sumsOf(rows: readonly MetricsRow[]): Map<string, number> {
  const sums = new Map<string, number>();
  for (const row of new Map(rows.map((one) => [rowKey(one), one])).values())
    for (const [name, value] of Object.entries(row))
      if (typeof value === 'number') sums.set(name, (sums.get(name) ?? 0) + value);
  return sums;
}
