/** Count of values between `from` and `to`; only the last bin includes its end. */
export interface Bin {
  readonly from: number;
  /** Equal to `from` for a bin of a single value. */
  readonly to: number;
  readonly count: number;
}

const binsMax = 10;

/**
 * A distribution in at most ten bins, ascending: one for each value if there are few (to three digits after the point),
 * else tenths of the range. The range is 0 to 1 if all values are in it. Empty without values.
 */
export function distribution(values: readonly number[]): Bin[] {
  const counts = new Map<number, number>();
  for (const exact of values) {
    const value = Math.round(exact * 1000) / 1000;
    counts.set(value, (counts.get(value) ?? 0) + 1);
    if (counts.size > binsMax) return inTenths(values);
  }
  return [...counts].sort(([a], [b]) => a - b).map(([value, count]) => ({ from: value, to: value, count }));
}

function inTenths(values: readonly number[]): Bin[] {
  let [least, most] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const value of values) {
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  if (least >= 0 && most <= 1) [least, most] = [0, 1];
  const counts = Array.from({ length: binsMax }, () => 0);
  for (const value of values) {
    counts[Math.min(binsMax - 1, Math.floor(((value - least) / (most - least)) * binsMax))]! += 1;
  }
  const edge = (i: number): number => (i === binsMax ? most : least + ((most - least) * i) / binsMax);
  return counts.map((count, i) => ({ from: edge(i), to: edge(i + 1), count }));
}
