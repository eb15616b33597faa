/**
 * When evaluations are sampled. `beside` the training, where servers hold several versions; `pause`: no training rollout is
 * sampled meanwhile; `defer`: once the last step is made.
 */
export const evalMoments = ['beside', 'pause', 'defer'] as const;
/** What is done when an evaluation is worse than the best before it, beyond chance; `flag` only says so. */
export const regressionActions = ['flag', 'pause', 'stop'] as const;
/** What becomes of a better prompt that a branch of the run found: it is told; it waits for somebody's yes; or it is taken where it is better beyond chance. */
export const adoptions = ['never', 'ask', 'if_better'] as const;
