import type { ScheduleSettings } from '../../settings/learning.ts';
import type { RunSettings } from '../../settings/run.ts';
import type { Overrides } from '../run-state.ts';

/** Settings that depend on the step's number: its learning rate, and the temperature of its rollouts. */

/**
 * Learning rate at step n of N (from 1), with w warm-up steps and the final fraction ρ = minRatio:
 *
 *     n ≤ w      peak · n / w, so that the first step trains; or, from a fraction f = warmupFrom, peak · (f + (1 − f) · (n − 1) / w)
 *     constant   peak
 *     linear     peak · (1 − (1 − ρ) · p), with p = (n − 1 − w) / (N − w) of the decay behind the step
 *                with d decay steps: peak until n = N − d, and p = (n − 1 − N + d) / d; with minLrAtEnd d − 1 for d, so that the
 *                last step has the rate peak · ρ
 *     cosine     peak · (ρ + (1 − ρ) · (1 + cos(π p)) / 2), likewise
 *
 * At f = 0 it is `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup` of transformers (optimization.py), whose n-th
 * step has the rate of λ(n − 1). At f = ρ, d and minLrAtEnd it is prime-rl's (trainer/scheduler.py), which takes 1e-8 for a ρ of 0.
 * Beyond the last step the rate stays where it ended. Serves RL and the supervised warm-up alike.
 */
export function learningRateAt(input: {
  readonly step: number;
  readonly maxSteps: number;
  readonly peak: number;
  readonly schedule: ScheduleSettings;
}): number {
  const { step, maxSteps, peak, schedule } = input;
  const { type, warmupSteps, warmupFrom: from, decaySteps, minRatio } = schedule;
  if (step <= warmupSteps) {
    return peak * (from === undefined ? step / warmupSteps : from + ((1 - from) * (step - 1)) / warmupSteps);
  }
  if (type === 'constant') return peak;
  const isLate = type === 'linear' && decaySteps !== undefined;
  const begin = isLate ? maxSteps - decaySteps : warmupSteps;
  const length = maxSteps - begin - (isLate && schedule.minLrAtEnd === true ? 1 : 0);
  const done = length === 0 ? 0 : Math.max(0, (Math.min(step, maxSteps) - 1 - begin) / length);
  const left = type === 'linear' ? 1 - done : (1 + Math.cos(Math.PI * done)) / 2;
  return peak * (minRatio + (1 - minRatio) * left);
}

/** Learning rate of a step of a run, with what was set while it runs. */
export function learningRateOf(
  step: number,
  spec: Pick<RunSettings, 'maxSteps' | 'learningRate'> & { readonly schedule: ScheduleSettings },
  overrides: Pick<Overrides, 'maxSteps' | 'learningRate'>,
): number {
  const peak = overrides.learningRate ?? spec.learningRate;
  return learningRateAt({ step, maxSteps: overrides.maxSteps ?? spec.maxSteps, peak, schedule: spec.schedule });
}

/**
 * Temperature of the groups that start from version v (the first step's from 0), of a schedule over N steps:
 *
 *     linear     start + (end − start) · p, with p = min(v, N − 1) / (N − 1); 1 where N is 1
 *     cosine     start + (end − start) · (1 − cos(π p)) / 2
 *
 * It is prime-rl 0.4's `compute_temperature` (utils/temp_scheduling.py), which counts steps from 0. Without a schedule it is undefined: the
 * group has its environment's.
 */
export function temperatureAt(
  version: number,
  { temperatureSchedule: schedule, maxSteps }: Pick<RunSettings, 'temperatureSchedule' | 'maxSteps'>,
): number | undefined {
  if (schedule === undefined) return undefined;
  const { type, startTemperature: start, endTemperature: end, totalSteps } = schedule;
  const last = (totalSteps ?? maxSteps) - 1;
  const done = last <= 0 ? 1 : Math.min(version, last) / last;
  return start + (end - start) * (type === 'linear' ? done : (1 - Math.cos(Math.PI * done)) / 2);
}

/** All temperatures that training rollouts may have: with a schedule those at its ends. */
export function temperaturesOf({
  sampling,
  temperatureSchedule: schedule,
  environments,
}: Pick<RunSettings, 'sampling' | 'temperatureSchedule' | 'environments'>): number[] {
  if (schedule) return [...new Set([schedule.startTemperature, schedule.endTemperature])];
  return [...new Set(environments.map(({ sampling: own = sampling }) => own.temperature))];
}
