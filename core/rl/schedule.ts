import type { ScheduleSpec } from '../../config/run-spec.ts';

/** The learning rate of a step. */

/**
 * Learning rate at step n of N (from 1), with w warm-up steps and the final fraction ρ = minRatio:
 *
 *     n ≤ w      peak · n / w
 *     constant   peak
 *     linear     peak · (1 − (1 − ρ) · p), with p = (n − 1 − w) / (N − w) of the decay behind the step
 *                with d decay steps: peak until n = N − d, and p = (n − 1 − N + d) / d; prime-rl (trainer/scheduler.py) takes
 *                d − 1 for d there, so that its last step has the rate peak · ρ, and with ρ = 0 trains nothing: that is not copied
 *     cosine     peak · (ρ + (1 − ρ) · (1 + cos(π p)) / 2), likewise
 *
 * as `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` of transformers (optimization.py), whose n-th step has the
 * rate of λ(n − 1): the last one still trains, at 1 / (N − w) of the peak where ρ = 0. Only the warm-up is counted from 1, so that
 * the first step trains, too. Beyond the last step the rate stays where it ended. Serves RL and the supervised warm-up alike.
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
  const done = Math.max(0, (Math.min(step, maxSteps) - 1 - begin) / (maxSteps - begin));
  const left = type === 'linear' ? 1 - done : (1 + Math.cos(Math.PI * done)) / 2;
  return peak * (minRatio + (1 - minRatio) * left);
}
