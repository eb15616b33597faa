import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { currentLineage, type RunPlace, storeOf, stretchesOf } from '../run-access.ts';
import { readMetrics } from './metrics.ts';

/** All numbers of one step: its training and its evaluations. */
export interface StepRecord {
  readonly step: number;
  readonly lineage: string;
  readonly metrics: Readonly<Record<string, number>>;
}

/** Steps that led to the run's position, ascending, without those that a rewind left behind. */
export async function stepRecords(run: RunPlace): Promise<StepRecord[]> {
  const place = { ...run, lineage: await currentLineage(run) };
  const stretches = await stretchesOf(place);
  const records = new Map<number, { step: number; lineage: string; metrics: Record<string, number> }>();
  for (const row of await readMetrics(storeOf(run))) {
    const stretch = stretches.find(({ lineage }) => lineage === row.lineage);
    if (!stretch || row.step > stretch.upTo) continue;
    // A step at which a lineage took over was trained by the lineage before.
    const known = records.get(row.step) ?? { step: row.step, lineage: row.lineage, metrics: {} };
    Object.assign(known.metrics, numbersOf(row));
    records.set(row.step, known);
  }
  return [...records.values()].sort((a, b) => a.step - b.step);
}

function numbersOf(row: MetricsRow): Record<string, number> {
  return Object.fromEntries(
    Object.entries(row).filter(
      (entry): entry is [string, number] => typeof entry[1] === 'number' && entry[0] !== 'step',
    ),
  );
}
