/** "Did you mean": the nearest of the names that exist. */

/** Longer than any existing name. */
const nameCharsMax = 200;

/** The candidate nearest to a misspelt name, or undefined when none is near enough to be meant. */
export function nearestName(name: string, candidates: readonly string[]): string | undefined {
  return nearestNames(name, candidates)[0];
}

/** All candidates that are equally near, in their order; none when none is near enough to be meant. */
export function nearestNames(name: string, candidates: readonly string[]): string[] {
  if (name.length > nameCharsMax) return []; // too long for a name, and distances take quadratic time
  const spelling = plain(name);
  let nearest: string[] = [];
  // A third of the letters may be wrong, and at least two: "tempratur" is meant, "rank" for "seed" is not.
  let within = Math.max(2, Math.floor(spelling.length / 3)) + 1;
  if (spelling.length <= 3) within = 2;
  for (const candidate of candidates) {
    const other = plain(candidate);
    if (Math.abs(other.length - spelling.length) > within) continue; // no distance is below the difference in length
    const distance = editDistance(spelling, other);
    if (distance < within) [nearest, within] = [[candidate], distance];
    else if (distance === within && nearest.length > 0 && !nearest.includes(candidate)) nearest.push(candidate);
  }
  // The spelling as typed: `_val` is as near to `eval` as to `val`.
  for (const candidate of candidates) {
    if (Math.abs(candidate.length - name.length) > 1 || nearest.includes(candidate)) continue;
    if (editDistance(name, candidate) === 1) nearest.push(candidate);
  }
  return nearest;
}

/** Dashes, underscores, dots and capitals are differences of spelling only. */
function plain(name: string): string {
  return name.toLowerCase().replaceAll(/[-_.\s]/g, '');
}

/** Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
export function editDistance(a: string, b: string): number {
  let [twoBack, previous]: [number[], number[]] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const current = [i];
    for (let j = 1; j <= b.length; j++) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1;
      let distance = Math.min(previous[j]! + 1, current[j - 1]! + 1, previous[j - 1]! + cost);
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (swapped) distance = Math.min(distance, twoBack[j - 2]! + 1);
      current.push(distance);
    }
    [twoBack, previous] = [previous, current];
  }
  return previous[b.length]!;
}
