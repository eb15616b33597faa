/**
 * Delay before a workflow retries. Each retry adds a few events to a history of limited length (51,200), so retries
 * become rarer. A trouble of seconds ends within seconds. One of a day costs under 250 retries, and its end is noticed
 * after at most a twentieth of its length.
 */
const defaultMs = 30_000;
const mostMs = 600_000;

/** `waitMs`: the latest wait, 0 before the first; `waitedMs`: the sum of all waits. */
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
  return Math.min(waitMs * 2, Math.max(defaultMs, waitedMs / 20), mostMs);
}
