/** Training on pairs of answers with a preference. */

/** Sums of log probabilities over the tokens of an answer, under the policy and under the reference. */
interface PairLogprobs {
  readonly chosen: number;
  readonly rejected: number;
  readonly referenceChosen: number;
  readonly referenceRejected: number;
}

interface PairLoss {
  readonly loss: number;
  /** β Δ, the difference of the pair's implicit rewards. */
  readonly margin: number;
  /** −∂L/∂ of each token's log probability: of the chosen answer this, of the rejected one its negative. */
  readonly weight: number;
}

/**
 * Direct preference optimization (Rafailov et al. 2023, eq. 7; TRL's DPOTrainer with loss_type "sigmoid", trainer/dpo_trainer.py):
 *
 *     L = −log σ(β Δ), Δ = (ℓ_c − r_c) − (ℓ_r − r_r)
 *
 * with ℓ and r the sums of an answer's log probabilities under the policy and the reference. ∂L/∂ℓ_c = −β σ(−β Δ) = −∂L/∂ℓ_r.
 */
export function pairLoss(
  { chosen, rejected, referenceChosen, referenceRejected }: PairLogprobs,
  beta: number,
): PairLoss {
  const margin = beta * (chosen - referenceChosen - (rejected - referenceRejected));
  // log(1 + e^−x) without overflow.
  const loss = Math.max(0, -margin) + Math.log1p(Math.exp(-Math.abs(margin)));
  const weight = margin >= 0 ? Math.exp(-margin) / (1 + Math.exp(-margin)) : 1 / (1 + Math.exp(margin));
  return { loss, margin, weight: beta * weight };
}
