import { plainMarkdown } from '../../core/markdown.ts';
import type { SweepStatus } from '../../core/sweep/sweep.ts';
import { describeRow } from '../../core/sweep/table.ts';

/** State of a sweep for the Temporal UI, as markdown. */
export function describeSweep({
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
}: SweepStatus): string {
  const at = runs.filter(({ state }) => state === 'training').map((run) => run.name);
  const last = decided.at(-1);
  return [
    `### ${plainMarkdown(name)}: ${phase}${pausedBecause === null ? '' : plainMarkdown(`: ${pausedBecause}`)}`,
    `- rung ${rung + 1} of ${rungSteps.length}, to step ${rungSteps[rung]}; ${steps.made} of ${steps.full} steps`,
    ...(at.length === 0 ? [] : [`- training: ${at.map(plainMarkdown).join(', ')}`]),
    ...(last?.ranking.slice(0, 5).map(({ row, mean }) => {
      return `- ${plainMarkdown(`${metric.name} ${mean?.toPrecision(4) ?? '–'} at step ${last.step}: ${describeRow(rows[row]!)}`)}`;
    }) ?? []),
  ].join('\n');
}
