import { type EvaluatedVersion, judgeRegression } from './regression.ts';

/** Results of one checkpoint on one environment. */
export interface CheckpointFigures {
  readonly step: number;
  readonly environment: string;
  /** Digest of the system prompt in use at its commit; absent: the environment's own. */
  readonly prompt?: string | undefined;
  /** null if every rollout failed. */
  readonly reward: number | null;
  readonly passAtK: Readonly<Record<string, number>>;
  readonly failed: number;
  readonly rollouts: number;
  /** Mean reward of each example. */
  readonly rewards: EvaluatedVersion['rewards'];
}

export interface CheckpointRow extends CheckpointFigures {
  /** The best of its environment. */
  readonly isBest: boolean;
  /** The earlier step that this one is worse than, beyond chance, under an equal prompt. */
  readonly worseThan: number | null;
  /** Its prompt differs from that of the previous checkpoint. */
  readonly isPromptNew: boolean;
}

/** One curve per environment, checkpoints in order. */
export function checkpointCurves(run: string, figures: readonly CheckpointFigures[]): Map<string, CheckpointRow[]> {
  const curves = new Map<string, CheckpointRow[]>();
  const environments = new Set(figures.map(({ environment }) => environment)).size;
  for (const environment of new Set(figures.map((one) => one.environment))) {
    const own = figures.filter((one) => one.environment === environment).sort((a, b) => a.step - b.step);
    const best = Math.max(...own.map(({ reward }) => reward ?? Number.NEGATIVE_INFINITY));
    curves.set(
      environment,
      own.map((one, i) => {
        const before = own.slice(0, i);
        const alike = before.filter(({ prompt }) => prompt === one.prompt);
        const judged = judgeRegression(one, alike, [run, environment], { environments });
        const isBest = one.reward === best && own.findIndex(({ reward }) => reward === best) === i;
        const isPromptNew = i > 0 && before.at(-1)!.prompt !== one.prompt;
        return { ...one, isBest, worseThan: judged?.isWorse === true ? judged.best.step : null, isPromptNew };
      }),
    );
  }
  return curves;
}
