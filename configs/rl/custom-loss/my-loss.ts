import type { LossContext } from '../../../engine/index.ts';

/**
 * A loss of one's own: from what is known of each token to the loss of each token. This one is CISPO (MiniMax-M1, 2025,
 * eq. 4), −sg(min(ρ, clip_high)) · A · ℓ, as `type = "cispo"` has it.
 *
 * It is called while a graph is built, first before the run begins: values are not numbers yet, `operators` says what is computed from them.
 * Masking, weighting, the sum and the KL term are added around it.
 */
export default function loss({ logprobs, behaviorLogprobs, advantages, clipHigh, operators }: LossContext) {
  const { exponential, minimum, multiply, negate, stopGradient, subtract } = operators;
  const ratio = exponential(stopGradient(subtract(logprobs, behaviorLogprobs)));
  return negate(multiply(multiply(minimum(ratio, clipHigh), advantages), logprobs));
}
