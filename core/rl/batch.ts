/** What a trainer gets: token rows with masks, in an order fixed by the plan. */

/** One row as it is packed and stored. The arrays are aligned and equally long; position t speaks of token t itself. */
export interface PackedRow {
  readonly tokenIds: readonly number[];
  /** 1 where the token was sampled by the policy and counts in the loss. Position 0 is always 0. */
  readonly lossMask: readonly number[];
  /**
   * The policy's log probability of the token when it was sampled, log softmax(logits / temperature); 0 where the mask is 0. Absent
   * where its server did not tell it.
   */
  readonly behaviorLogprobs?: readonly number[];
  /**
   * The sampler's: log probability under the distribution that was really drawn from, where penalties, top_p, top_k or min_p made it
   * another one than softmax(logits / temperature). Absent where it is the same, or nobody told it.
   */
  readonly samplingLogprobs?: readonly number[];
  readonly advantages: readonly number[];
  /** A teacher's log probability of the token, at temperature 1; 0 where the mask is 0. Absent where the run has no teacher that scores. */
  readonly teacherLogprobs?: readonly number[];
  /** Absent where each row of the batch is a rollout of its own, and there are no others. */
  readonly rollout?: RolloutOfRow;
}

/** A rollout may be several rows, where its chat template rewrites the past, or none, where it carries no loss. */
interface RolloutOfRow {
  /** Among the batch's, from 0. */
  readonly index: number;
  /** How many the batch has, those without a row included. */
  readonly of: number;
}

/** One row as a trainer gets it: what no server told of the policy is the trainer's own, of the weights that the step begins from. */
export interface TrainSample extends PackedRow {
  readonly behaviorLogprobs: readonly number[];
}

export interface TrainBatch {
  readonly samples: readonly TrainSample[];
}
