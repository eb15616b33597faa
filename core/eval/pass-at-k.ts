/**
 * pass@k and pass^k of one example, the unbiased estimators that verifiers uses (`PassAtKMetric`): of n rollouts of which c were right,
 * the chance that at least one of k drawn without replacement is right, and that all of them are.
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
 * Both for each k, averaged over examples. `examplesByRight[c]` = how many examples had c right rollouts of n. Empty where there is
 * no whole example, or one rollout of each.
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

/** C(part, k) / C(n, k), factor by factor: each binomial by itself is soon larger than any number. */
function allOf(part: number, n: number, k: number): number {
  if (part < k) return 0;
  let chance = 1;
  for (let i = 0; i < k; i++) chance *= (part - i) / (n - i);
  return chance;
}
