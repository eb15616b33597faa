import type { ScheduleSpec } from '../spec/run-spec.ts';

/** The learning rate of a step. */

/**
 * Learning rate at step n of N (from 1), with w warm-up steps and the final fraction ρ = minRatio:
 *
 *     n ≤ w      peak · n / w
 *     constant   peak
 *     linear     peak · (1 − (1 − ρ) · (n − w) / (N − w)), which is peak · ρ at n = N
 *                with d decay steps: peak until n = N − d, and (n − N + d) / d in place of (n − w) / (N − w)
 *     cosine     peak · (ρ + (1 − ρ) · (1 + cos(π (n − w) / (N − w))) / 2), likewise
 *
 * as `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` of transformers, counted from 1 so that no step has rate 0 at its start. Beyond
 * the last step the rate stays where it ended. Serves RL and the supervised warm-up alike.
 */
export function learningRateAt(input: {
  readonly step: number;
  readonly maxSteps: number;
  readonly peak: number;
  readonly schedule: ScheduleSpec;
}): number {
  const { step, maxSteps, peak, schedule } = input;
  const { type, warmupSteps, decaySteps, minRatio } = schedule;
  if (step <= warmupSteps) return (peak * step) / warmupSteps;
  if (type === 'constant') return peak;
  const begin = type === 'linear' && decaySteps !== undefined ? maxSteps - decaySteps : warmupSteps;
  const done = Math.max(0, Math.min(1, (step - begin) / (maxSteps - begin)));
  const left = type === 'linear' ? 1 - done : (1 + Math.cos(Math.PI * done)) / 2;
  return peak * (minRatio + (1 - minRatio) * left);
}
