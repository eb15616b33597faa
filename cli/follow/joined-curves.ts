import type { Curves } from '../../runs/metrics/curves.ts';
import type { EvalFigures } from '../../core/rl/figures.ts';

/** Appends to stored curves the steps and evaluations that the run remembers and that are not stored yet. */
export function joinedCurves(stored: Curves, remembered: Curves): Curves {
  const last = stored.trend.at(-1)?.[0] ?? -Infinity;
  const isStored = (one: EvalFigures): boolean =>
    stored.evals.some(({ step, environment }) => step === one.step && environment === one.environment);
  return {
    trend: [...stored.trend, ...remembered.trend.filter(([step]) => step > last)],
    evals: [...stored.evals, ...remembered.evals.filter((one) => !isStored(one))],
  };
}
