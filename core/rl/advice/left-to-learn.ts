/** Number of last steps that are considered. */
const stepsLooked = 10;
/** From this share of fully solved groups on, most sampling is wasted, and a run starves before long. */
const solvedShareMax = 0.5;

/**
 * The share of the last steps' groups whose rollouts were all right, if it is so large that more steps on these
 * examples teach little; else null, as without data. `steps`: metrics by step, ascending.
 */
export function solvedShare(steps: readonly Readonly<Record<string, number>>[]): number | null {
  const shares = steps.slice(-stepsLooked).flatMap((metrics) => metrics['train/agg/all/solved_all'] ?? []);
  if (shares.length === 0) return null;
  const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
  return mean >= solvedShareMax ? mean : null;
}

export function describeSolved(share: number): string {
  return `more steps would teach little: ${Math.round(100 * share)} % of the last groups were all right`;
}
