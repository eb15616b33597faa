/**
 * How long a workflow waits before it asks again. Each asking is a few events of a history that has an end (51,200), so what
 * has been away for long is asked for less often: a trouble of seconds is over within seconds, one of a day costs under 250
 * askings, and is noticed to be over after a twentieth of its length at most.
 */
const usualMs = 30_000;
const mostMs = 600_000;

/** `waitMs`: what it waited last, 0 before the first time; `waitedMs`: all that it waited. */
export function nextWaitMs({
  firstMs,
  waitMs,
  waitedMs,
}: {
  readonly firstMs: number;
  readonly waitMs: number;
  readonly waitedMs: number;
}): number {
  if (waitMs === 0) return firstMs;
  return Math.min(waitMs * 2, Math.max(usualMs, waitedMs / 20), mostMs);
}
