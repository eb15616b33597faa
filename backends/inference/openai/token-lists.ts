/** Sums of rounded numbers may end a little above 0. */
const logprobMax = 0.01;

export function isLogprob(value: unknown): value is number {
  return Number.isFinite(value) && (value as number) <= logprobMax;
}

/** Checks thousands of numbers in an answer one by one, without a schema for each. */
export function areIds(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && (id as number) >= 0);
}
