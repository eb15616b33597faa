import { bootstrapMean } from './bootstrap.ts';

/** How a version stands beside an earlier one, on the same examples. */
export type HeldOutChange = 'rose' | 'fell' | 'no difference beyond chance' | 'too few examples';

/** Percentiles of fewer differences than these promise more than they know. */
const examplesMin = 10;
/** A run is called better or worse once, at its end, by one of two figures: so each is asked for more than the usual 95 %. */
const confidence = 0.99;

/** `differences`: of each example its reward after, less its reward before. */
export function judgeChange(differences: readonly number[], key: readonly (number | string)[]): HeldOutChange {
  if (differences.length < examplesMin) return 'too few examples';
  const { low, high } = bootstrapMean(differences, { key, confidence });
  if (low > 0) return 'rose';
  return high < 0 ? 'fell' : 'no difference beyond chance';
}
