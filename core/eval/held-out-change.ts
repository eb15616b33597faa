import { bootstrapMean } from './bootstrap.ts';

/** A version compared with an earlier one, on common examples. */
export type HeldOutChange = 'rose' | 'fell' | 'no difference beyond chance' | 'too few examples';

/** Percentiles of fewer differences would promise too much. */
const examplesMin = 10;
/** Two figures may each call a run better or worse once, at its end, so both need more than the common 95 %. */
const confidence = 0.99;

/** `differences`: reward after minus reward before, by example. */
export function judgeChange(differences: readonly number[], key: readonly (number | string)[]): HeldOutChange {
  if (differences.length < examplesMin) return 'too few examples';
  const { low, high } = bootstrapMean(differences, { key, confidence });
  if (low > 0) return 'rose';
  return high < 0 ? 'fell' : 'no difference beyond chance';
}
