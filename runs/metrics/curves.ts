import { readMetrics } from './metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { evalsKept, trendKept } from '../../core/limits.ts';
import type { EvalFigures, StepTrend } from '../../core/rl/figures.ts';
import { type LineagePlace, storeOf, stretchesOf } from '../run-access.ts';

/** The figures that the curves of a run are drawn from. */
export interface Curves {
  /** Oldest first. */
  readonly trend: readonly StepTrend[];
  /** Oldest first. */
  readonly evals: readonly EvalFigures[];
}

/** All steps and evaluations up to a committed step, of the lineages that led to it; read from `metrics.jsonl`. */
export async function curvesOf(place: LineagePlace, upToStep: number): Promise<Curves> {
  const stretches = await stretchesOf(place);
  const isOnTheWay = ({ lineage, step }: MetricsRow): boolean => {
    const stretch = stretches.find((one) => one.lineage === lineage);
    return stretch !== undefined && step <= Math.min(stretch.upTo, upToStep);
  };
  const rows = (await readMetrics(storeOf(place))).filter(isOnTheWay).sort((a, b) => a.step - b.step);
  const trend = rows.filter((row) => row.step > 0 && 'train/reward' in row).map(trendOf);
  return { trend, evals: rows.flatMap(evaluationsIn) };
}

/** The newest points: a workflow's memory, which is part of history, is bounded. */
export function rememberedOf({ trend, evals }: Curves): Curves {
  return { trend: trend.slice(-trendKept), evals: evals.slice(-evalsKept) };
}

function trendOf(row: MetricsRow): StepTrend {
  const exact = numberIn(row, 'train/agg/all/metrics/exact_match');
  return [row.step, numberIn(row, 'train/reward'), exact, numberIn(row, 'time/step') ?? 0];
}

function evaluationsIn(row: MetricsRow): EvalFigures[] {
  return Object.keys(row).flatMap((name) => {
    const environment = /^eval\/(.+)\/policy_version$/.exec(name)?.[1];
    if (environment === undefined) return [];
    const figure = (what: string): number | null => numberIn(row, `eval/${environment}/${what}`);
    return [
      {
        step: row.step,
        environment,
        reward: figure('reward/mean'),
        exact: figure('metrics/exact_match'),
        greedyReward: figure('greedy/reward/mean'),
        greedyExact: figure('greedy/metrics/exact_match'),
      },
    ];
  });
}

function numberIn(row: MetricsRow, name: string): number | null {
  const value = row[name];
  return typeof value === 'number' ? value : null;
}
