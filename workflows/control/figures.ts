import { evalsKept, trendKept } from '../../core/limits.ts';
import type { EndedBranch, NotedRegression, RunEvent } from './messages.ts';
import type { EvalFigures, StepTrend } from '../../core/rl/figures.ts';

/** The figures that the curves of a run are drawn from. */
export interface RunFigures {
  /** When the attempt began, ISO time. */
  readonly since: string;
  readonly latest: RunEvent['values'];
  readonly trend: readonly StepTrend[];
  readonly evals: readonly EvalFigures[];
  readonly regressions: Readonly<Record<string, NotedRegression>>;
  /** Absent without any. */
  readonly branchesEnded?: Readonly<Record<string, EndedBranch>>;
}

/** Figures of an attempt that begins now, for a run that may already have curves. */
export function figuresFrom({ trend, evals }: Pick<RunFigures, 'trend' | 'evals'>): RunFigures {
  return { since: new Date().toISOString(), latest: {}, trend, evals, regressions: {} };
}

/** The figures with those of an event. After a rewind the steps that were superseded leave the curve. */
export function figuresAfter(figures: RunFigures, { kind, step, text, values }: RunEvent): RunFigures {
  const number = (name: string): number | null => (typeof values[name] === 'number' ? values[name] : null);
  if (kind === 'step') {
    const exact = number('train/agg/all/metrics/exact_match');
    const added: StepTrend = [step, number('reward'), exact, number('step_s') ?? 0];
    return { ...figures, latest: values, trend: [...figures.trend, added].slice(-trendKept) };
  }
  if (kind === 'eval') {
    const added: EvalFigures = {
      step,
      environment: String(values['environment']),
      reward: number('reward'),
      exact: number('exact'),
      greedyReward: number('greedy_reward'),
      greedyExact: number('greedy_exact'),
    };
    return { ...figures, evals: [...figures.evals, added].slice(-evalsKept) };
  }
  const { environment, verdict } = values;
  if (typeof environment === 'string' && typeof verdict === 'string') {
    return { ...figures, branchesEnded: { ...figures.branchesEnded, [environment]: { step, verdict, text } } };
  }
  if (kind === 'rewound') {
    const trend = figures.trend.filter(([of]) => of <= step);
    const regressions = Object.fromEntries(
      Object.entries(figures.regressions).filter(([, regression]) => regression.step <= step),
    );
    const { branchesEnded = {}, ...rest } = figures;
    const ended = Object.fromEntries(Object.entries(branchesEnded).filter(([, branch]) => branch.step <= step));
    const evals = figures.evals.filter((found) => found.step <= step);
    const branches = Object.keys(ended).length === 0 ? {} : { branchesEnded: ended };
    return { ...rest, latest: {}, trend, evals, regressions, ...branches };
  }
  return figures;
}

/** Raises or clears an environment's flag; returns the same figures when nothing changes. */
export function withRegression(
  figures: RunFigures,
  environment: string,
  regression: NotedRegression | null,
): RunFigures {
  const { [environment]: before, ...others } = figures.regressions;
  if (regression === null && before === undefined) return figures;
  return { ...figures, regressions: regression === null ? others : { ...others, [environment]: regression } };
}
