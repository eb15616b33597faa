import { rungSteps, stepsOf } from '../../core/sweep/halving.ts';
import type { SweepInput } from '../../core/sweep/sweep.ts';
import { describeRow } from '../../core/sweep/table.ts';
import { counted } from '../eval/figures.ts';

/** What `ratchet sweep --dry-run` says of a sweep: its runs and rungs. */
export function planLines({ name, config, rows, runs, metric, maxSteps, halving }: SweepInput): string[] {
  const steps = rungSteps(maxSteps, halving);
  const seeds = runs.length / rows.length;
  const { halved, full } = stepsOf(rows.length, seeds, { steps, eta: halving?.eta ?? null });
  return [
    `${name}: ${counted(runs.length, 'run')} of ${config}, ${counted(rows.length, 'row')} of settings × ${counted(seeds, 'seed')}`,
    `rungs at step ${steps.join(', ')}, by ${metric.name} (${metric.goal}): ${halved} steps of ${full}`,
    ...runs.map((run) => `  ${run.name}  ${describeRow(rows[run.row]!)}`),
  ];
}

/** The same for a program. */
export function planJson(input: SweepInput): object {
  return { ...input, sent: undefined, rungSteps: rungSteps(input.maxSteps, input.halving) };
}
