/**
 * Distance of the trained policy from the sampling one, which bounds how many steps sampling may be ahead
 * (`max_mismatch_kl`). Samples of an older policy teach less: measured in bench/README.md, `async-learning`.
 */
export interface Drift {
  /**
   * Nats per token between sampler and trainer that are not due to age, as between two precisions: the least of any
   * step; null if unknown.
   */
  readonly least: number | null;
  /** Nats per token beyond `least` for each version that a batch was behind, the newest step counting half; null while none was behind. */
  readonly perVersion: number | null;
  /** Steps that sampling may be ahead, half of one at least; absent = unbounded. */
  readonly ahead?: number;
}

/** Weight of the newest step; the earlier ones have the rest. */
const newest = 0.5;

/**
 * A run begins half a batch ahead, which is also the least, so that no step waits for a straggler. Each step adds at
 * most half a batch: samples are trained on steps later, and a policy moves faster once its learning rate has risen.
 */
const [aheadLeast, aheadMore] = [0.5, 0.5];

/** Measurements of a step; undefined if unknown. */
interface Measured {
  /** Nats per token. */
  readonly mismatchKl: number | undefined;
  /** Versions that the batch was behind, on average. */
  readonly behind: number | undefined;
  /** `max_mismatch_kl`; null = unbounded. */
  readonly most: number | null;
}

export function driftAfter(before: Drift | undefined, { mismatchKl, behind, most }: Measured): Drift {
  const moved = movedBy(before, mismatchKl, behind);
  if (most === null) return moved;
  const { perVersion } = moved;
  const near = perVersion === null || perVersion === 0 ? Infinity : Math.max(aheadLeast, most / perVersion);
  const ahead = Math.min(near, aheadIn(before) + aheadMore);
  return Number.isFinite(ahead) ? { ...moved, ahead } : moved;
}

/** How many of `level` steps sampling may now be ahead; levels up to 1 are not reduced. */
export function levelWithin(level: number, drift: Drift | undefined, most: number | null): number {
  return most === null || level <= 1 ? level : Math.min(level, aheadIn(drift));
}

function aheadIn(drift: Drift | undefined): number {
  return drift ? (drift.ahead ?? Infinity) : aheadLeast;
}

function movedBy(before: Drift | undefined, mismatchKl: number | undefined, behind = 0): Drift {
  const known = before?.perVersion ?? null;
  if (mismatchKl === undefined || !Number.isFinite(mismatchKl))
    return { least: before?.least ?? null, perVersion: known };
  const least = Math.max(0, Math.min(before?.least ?? Infinity, mismatchKl));
  if (behind === 0) return { least, perVersion: known };
  const now = Math.max(0, mismatchKl - least) / behind;
  return { least, perVersion: known === null ? now : newest * now + (1 - newest) * known };
}
