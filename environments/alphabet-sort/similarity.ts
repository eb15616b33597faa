/**
 * Similarity of two texts: 2 · matching characters / all characters, from 0 to 1. Matches are the longest common piece,
 * then the same to its left and right (Ratcliff and Obershelp, Dr. Dobb's Journal, July 1988); of several longest
 * pieces the earliest in `a`, then in `b`. Equal to Python's difflib.SequenceMatcher.ratio() for texts below 200
 * characters.
 */
export function similarity(a: string, b: string): number {
  if (a.length + b.length === 0) return 1;
  return (2 * matching(a, b)) / (a.length + b.length);
}

function matching(a: string, b: string): number {
  const { inA, inB, length } = longestCommon(a, b);
  if (length === 0) return 0;
  const left = matching(a.slice(0, inA), b.slice(0, inB));
  return left + length + matching(a.slice(inA + length), b.slice(inB + length));
}

function longestCommon(a: string, b: string): { inA: number; inB: number; length: number } {
  let best = { inA: 0, inB: 0, length: 0 };
  // Lengths of common pieces that end at the previous character of `a`, by their end in `b`.
  let before = new Uint32Array(b.length + 1);
  for (let i = 0; i < a.length; i++) {
    const now = new Uint32Array(b.length + 1);
    for (let j = 0; j < b.length; j++) {
      if (a[i] !== b[j]) continue;
      const length = before[j]! + 1;
      now[j + 1] = length;
      if (length > best.length) best = { inA: i - length + 1, inB: j - length + 1, length };
    }
    before = now;
  }
  return best;
}
