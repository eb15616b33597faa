/** Figures of a run in short, as its curves are drawn from them. */

/** A step in short: its number, mean reward, share of exact answers, and wall time in seconds; null = not measured. */
export type StepTrend = readonly [step: number, reward: number | null, exact: number | null, seconds: number];

/** Null where every rollout failed. */
export interface EvalFigures {
  readonly step: number;
  readonly environment: string;
  readonly reward: number | null;
  readonly exact: number | null;
  readonly greedyReward: number | null;
  readonly greedyExact: number | null;
}
