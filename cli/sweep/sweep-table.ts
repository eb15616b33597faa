import type { RowStanding } from '../../core/sweep/halving.ts';
import type { SweepStatus } from '../../core/sweep/sweep.ts';
import { describeRow } from '../../core/sweep/table.ts';
import { inColumns } from '../output/in-columns.ts';
import { onOneLine } from '../output/plain-text.ts';

/** Rows of settings as a table, those that came furthest first. */
export function sweepLines({
  name,
  phase,
  pausedBecause,
  metric,
  rows,
  rungSteps,
  rung,
  decided,
  runs,
  steps,
}: SweepStatus): string[] {
  const settings = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const newest = new Map<number, RowStanding & { readonly step: number }>();
  for (const { step, ranking } of decided)
    for (const standing of ranking) newest.set(standing.row, { ...standing, step });
  // Of each row its last place counts: a row that went further is before those that were dropped.
  const order = [...decided].reverse().flatMap(({ ranking }) => ranking.map(({ row }) => row));
  const listed = [...new Set([...order, ...rows.keys()])];
  const cells = listed.map((row) => {
    const standing = newest.get(row);
    const states = new Set(runs.filter((run) => run.row === row).map(({ state }) => state));
    return [
      String(row + 1),
      ...settings.map((key) => shown(rows[row]![key])),
      standing?.mean == null ? '–' : figure(standing.mean),
      standing?.standardError == null ? '–' : figure(standing.standardError),
      standing === undefined ? '–' : String(standing.step),
      [...states].join(', '),
    ];
  });
  const failed = runs.filter(({ failure }) => failure !== undefined);
  return [
    `${name}: ${phase}${pausedBecause === null ? '' : `: ${pausedBecause}`} · rung ${rung + 1} of ${rungSteps.length}, to step ${rungSteps[rung]} · ${steps.made} of ${steps.full} steps`,
    ...inColumns([['row', ...settings, metric.name, 'std. error', 'at step', 'runs'], ...cells]),
    ...failed.map((run) => `${run.name} failed: ${run.failure}`),
    ...runs.flatMap(({ name: run, row, changed }) =>
      changed === undefined ? [] : [`${run} was steered: ${changed.join(', ')}; its row is ${describeRow(rows[row]!)}`],
    ),
  ].map(onOneLine);
}

function shown(value: unknown): string {
  if (value === undefined) return '–';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function figure(value: number): string {
  return value.toPrecision(4);
}
