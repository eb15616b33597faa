/** How many steps say whether anything is left to learn. */
const stepsLooked = 10;
/** From this share of groups on that everybody solved, most sampling is for nothing, and a run starves before long. */
const solvedShareMax = 0.5;

/**
 * The share of the last steps' groups of which every rollout was right, where that is so large that more steps of the same
 * examples teach little; null where there is something left, or the run does not tell. `steps`: metrics by step, ascending.
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
