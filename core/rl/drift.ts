/**
 * How far the policy that trains is from the one that sampled, and so how many steps sampling may be ahead (`max_mismatch_kl`). Samples of an
 * older policy teach less: measured in bench/README.md, `async-learning`.
 */
export interface Drift {
  /** Nats per token between sampler and trainer that no age explains, as between two precisions: the least of any step; null while it is not known. */
  readonly least: number | null;
  /** Nats per token beyond `least` for each version that a batch was behind, the newest step counting half; null while none was behind. */
  readonly perVersion: number | null;
  /** Steps that sampling may be ahead, half of one at least; absent where nothing bounds it. */
  readonly ahead?: number;
}

/** The newest step counts so much, all before it the rest. */
const newest = 0.5;

/**
 * A run begins half a batch ahead, is never less, so that no step waits for a straggler, and with each step half a batch more at most: what is
 * sampled is trained steps later, and a policy moves faster once its learning rate has risen.
 */
const [aheadLeast, aheadMore] = [0.5, 0.5];

/** Of a step; undefined where it is not known. */
interface Measured {
  /** Nats per token. */
  readonly mismatchKl: number | undefined;
  /** Versions that the batch was behind, on average. */
  readonly behind: number | undefined;
  /** `max_mismatch_kl`; null = any. */
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

/** Of `level` steps those that sampling may be ahead by now; all of them up to level 1. */
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
