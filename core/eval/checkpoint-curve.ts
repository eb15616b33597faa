import { type EvaluatedVersion, judgeRegression } from './regression.ts';

/** What came of one checkpoint on one environment. */
export interface CheckpointFigures {
  readonly step: number;
  readonly environment: string;
  /** null where every rollout failed. */
  readonly reward: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly failed: number;
  readonly rollouts: number;
  /** Mean reward of each example. */
  readonly rewards: EvaluatedVersion['rewards'];
}

export interface CheckpointRow extends CheckpointFigures {
  /** The best of all of its environment. */
  readonly isBest: boolean;
  /** The step before it that it is worse than, beyond chance. */
  readonly worseThan: number | null;
}

/** By environment, each with its checkpoints in order. */
export function checkpointCurves(run: string, figures: readonly CheckpointFigures[]): Map<string, CheckpointRow[]> {
  const curves = new Map<string, CheckpointRow[]>();
  for (const environment of new Set(figures.map((one) => one.environment))) {
    const own = figures.filter((one) => one.environment === environment).sort((a, b) => a.step - b.step);
    const best = Math.max(...own.map(({ reward }) => reward ?? Number.NEGATIVE_INFINITY));
    curves.set(
      environment,
      own.map((one, i) => {
        const judged = judgeRegression(one, own.slice(0, i), [run, environment]);
        const isBest = one.reward === best && own.findIndex(({ reward }) => reward === best) === i;
        return { ...one, isBest, worseThan: judged?.isWorse === true ? judged.best.step : null };
      }),
    );
  }
  return curves;
}
