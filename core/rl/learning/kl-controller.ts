/** How the KL coefficient follows its target. */

/** Beyond this the penalty would drown every reward; a run that gets here has another problem. */
const betaMax = 1e6;

/**
 * The coefficient after a step with a measured KL: doubled above 1.5 · target, halved below target / 1.5, else
 * unchanged (adaptive KL penalty, Schulman et al. 2017, PPO §4). Nothing changes without a target, with a coefficient
 * of 0 (report only), or after a KL that is not finite.
 */
export function nextBeta(input: {
  readonly beta: number;
  readonly targetKl: number | null;
  readonly measuredKl: number;
}): number {
  const { beta, targetKl, measuredKl } = input;
  if (targetKl === null || !Number.isFinite(measuredKl)) return beta;
  if (measuredKl > 1.5 * targetKl) return Math.min(beta * 2, Math.max(beta, betaMax));
  if (measuredKl < targetKl / 1.5) return beta / 2;
  return beta;
}
