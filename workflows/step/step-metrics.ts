import { present } from '../../core/present.ts';
import { timeMetrics } from '../../core/rl/effectiveness.ts';
import type { CollectedStep } from './collect-step.ts';

/** Figures of a training's event, besides the batch's. */
export function trainFigures({
  metrics,
  learningRate,
}: {
  readonly metrics: Readonly<Record<string, number>>;
  readonly learningRate: number;
}): Record<string, number> {
  return { kl: metrics['kl_divergence'] ?? 0, learning_rate: learningRate, ...present({ loss: metrics['loss'] }) };
}

/** Metrics of a step's commit that only the workflow knows; the batch's own are added from its plan. */
export function committedMetrics(step: {
  readonly collected: CollectedStep;
  readonly trained: {
    readonly metrics: Readonly<Record<string, number>>;
    readonly learningRate: number;
    readonly seconds: number;
  };
  readonly klBeta: number;
  readonly waitedS: number;
  /** Seconds that training waited for servers that an evaluation had to itself. */
  readonly evalWaitS: number;
  readonly stepS: number;
  /** Lost work and paused time. */
  readonly account: Readonly<Record<string, number>>;
}): Record<string, number> {
  const { collected, trained, klBeta, waitedS, evalWaitS, stepS, account } = step;
  const { metrics, learningRate, seconds } = trained;
  return {
    ...metrics,
    ...(collected.taught ? { 'train/teacher_kl': collected.taught.kl, 'time/teacher': collected.taught.seconds } : {}),
    'train/learning_rate': learningRate,
    'train/loss': metrics['loss'] ?? 0,
    'train/kl_beta': klBeta,
    ...present({
      'train/kl_divergence': metrics['kl_divergence'],
      'window/utilisation': collected.figures['window_utilisation'],
    }),
    [timeMetrics.generation]: collected.figures['generate_s'] ?? 0,
    [timeMetrics.scoring]: collected.figures['score_s'] ?? 0,
    [timeMetrics.waitForBatch]: waitedS,
    ...(evalWaitS > 0 ? { [timeMetrics.waitForEval]: evalWaitS } : {}),
    [timeMetrics.train]: seconds,
    [timeMetrics.step]: stepS,
    ...account,
  };
}
