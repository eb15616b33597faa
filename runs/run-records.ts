import { RatchetError } from '../core/errors.ts';
import { layout } from './layout.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import { committedSteps, currentLineage, type RunPlace, storeOf, stretchesOf } from './run-access.ts';
import { readMetrics } from './metrics/metrics.ts';
import type { MetricsRow } from '../core/rl/metric-rows.ts';
import { decodeStoredRows } from './forms/stored-forms.ts';
import { scoredShape } from './rollouts/scored-groups.ts';

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

export async function headStep(run: RunPlace): Promise<number> {
  const last = (await committedSteps({ ...run, lineage: await currentLineage(run) })).at(-1);
  if (last !== undefined) return last;
  throw new RatchetError(
    'RunNotFound',
    `Nothing is committed yet in ${storeOf(run).uri}: the run has not made its first version.`,
  );
}

/** Lineage of a step, among those that led to the run's position. */
export async function lineageOfStep(run: RunPlace, step: number): Promise<string> {
  const stretches = await stretchesOf({ ...run, lineage: await currentLineage(run) });
  return (stretches.find(({ from, upTo }) => step <= upTo && (step > from || from === 0)) ?? stretches[0]!).lineage;
}

/** Scored groups sampled for a step, by ordinal; for steps in progress, those scored already. */
export async function scoredGroups(run: RunPlace, step: number): Promise<ScoredGroup[]> {
  const store = storeOf(run);
  const keys = await store.list(layout.rounds(await lineageOfStep(run, step), step));
  const groups: ScoredGroup[] = [];
  for (const key of layout.scoredIn(keys)) {
    const bytes = await store.read(key);
    if (bytes) groups.push(...decodeStoredRows<ScoredGroup>(bytes, storeOf(run).uri + key, scoredShape));
  }
  return groups.sort((a, b) => a.ordinal - b.ordinal);
}
