import { randomStream } from '../random.ts';

/** A mean, with an interval that contains it with a probability of `confidence`. */
export interface Interval {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Gives the ends of an interval to half a percent, in some milliseconds for a thousand examples. */
const resamplesDefault = 2_000;

interface BootstrapOptions {
  /** Key of the random numbers: equal data with an equal key give equal intervals. */
  readonly key: readonly (number | string)[];
  /** Above 0, below 1; 0.95 when missing. */
  readonly confidence?: number;
  readonly resamples?: number;
}

/**
 * The percentile bootstrap of a mean (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13): the values are
 * drawn again with replacement, and the interval holds the middle of the means. The interval of one value is that value. Throws
 * RangeError without values.
 */
export function bootstrapMean(values: readonly number[], options: BootstrapOptions): Interval {
  const { confidence = 0.95, resamples = resamplesDefault, key } = options;
  const count = values.length;
  if (count === 0) throw new RangeError('bootstrapMean: expected at least one value, got none');
  const random = randomStream('bootstrap', ...key);
  const means = Float64Array.from({ length: resamples }, () => {
    let sum = 0;
    for (let i = 0; i < count; i++) sum += values[Math.floor(random() * count)]!;
    return sum / count;
  }).sort();
  const at = (share: number): number =>
    means[Math.min(resamples - 1, Math.max(0, Math.round(share * (resamples - 1))))]!;
  const tail = (1 - confidence) / 2;
  return { mean: values.reduce((sum, value) => sum + value, 0) / count, low: at(tail), high: at(1 - tail) };
}
