/** The middle value; the mean of the two middle ones. NaN for nothing. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  return (sorted[Math.ceil(middle) - 1]! + sorted[Math.floor(middle)]!) / 2;
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Rounds for printing, to no more digits than were measured. */
export function round(value: number, digits = 3): number {
  return Number(value.toFixed(digits));
}
