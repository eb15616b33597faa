/**
 * When evaluations are sampled. `beside` the training, if servers hold several versions; `pause`: training rollouts
 * pause meanwhile; `defer`: after the last step.
 */
export const evalMoments = ['beside', 'pause', 'defer'] as const;
/** Action when an evaluation is worse than the best before it, beyond chance; `flag` only reports it. */
export const regressionActions = ['flag', 'pause', 'stop'] as const;
/**
 * Use of a better prompt that a branch of the run found: it is reported; it waits for a person's approval; or it is
 * adopted if better beyond chance.
 */
export const adoptions = ['never', 'ask', 'if_better'] as const;
