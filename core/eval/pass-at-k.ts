/**
 * pass@k and pass^k of one example by verifiers' unbiased estimators (`PassAtKMetric`). Let c of n rollouts be right,
 * and draw k without replacement: the probability that at least one is right, and that all are.
 */

/** Reward from which verifiers counts a rollout as right. */
export const passThreshold = 0.5;

/** 1, 2, 4, … up to n; none for a single rollout of each example. */
export function passCounts(n: number): number[] {
  return n < 2 ? [] : Array.from({ length: Math.floor(Math.log2(n)) + 1 }, (_, i) => 2 ** i);
}

/** 1 − C(n−c, k) / C(n, k) */
export function passAtK(n: number, right: number, k: number): number {
  return 1 - allOf(n - right, n, k);
}

/** C(c, k) / C(n, k) */
export function passAllK(n: number, right: number, k: number): number {
  return allOf(right, n, k);
}

/**
 * pass@k and pass^k for each k, averaged over examples. `examplesByRight[c]` = number of examples with c right rollouts
 * of n. Empty without whole examples, or with one rollout each.
 */
export function passFigures(
  n: number,
  examplesByRight: readonly number[],
): { readonly atK: Record<string, number>; readonly allK: Record<string, number> } {
  const examples = examplesByRight.reduce((sum, count) => sum + count, 0);
  if (examples === 0) return { atK: {}, allK: {} };
  const averaged = (estimate: typeof passAtK): Record<string, number> =>
    Object.fromEntries(
      passCounts(n).map((k) => {
        const total = examplesByRight.reduce((sum, count, right) => sum + count * estimate(n, right, k), 0);
        return [String(k), total / examples];
      }),
    );
  return { atK: averaged(passAtK), allK: averaged(passAllK) };
}

/** C(part, k) / C(n, k), factor by factor: the binomials themselves soon overflow. */
function allOf(part: number, n: number, k: number): number {
  if (part < k) return 0;
  let chance = 1;
  for (let i = 0; i < k; i++) chance *= (part - i) / (n - i);
  return chance;
}
