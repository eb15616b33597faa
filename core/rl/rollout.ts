/** The words of the domain: example, turn, rollout, group. Shapes are plain data, as they lie in the store. */

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly content: string;
}

/** One row of an environment's dataset. `id` is its position there and never changes. */
export interface Example {
  readonly id: number;
  readonly prompt: readonly ChatMessage[];
  readonly answer: string;
  readonly info?: Readonly<Record<string, unknown>>;
}

/** What the model said in one turn, token by token. */
export interface Turn {
  readonly promptTokenIds: readonly number[];
  /** Sampled ids, the end-of-sequence token included when it was sampled. */
  readonly tokenIds: readonly number[];
  /** log π(token) under the sampler, natural log, of softmax(logits / temperature); one per sampled id. */
  readonly logprobs: readonly number[];
  /** The same under the distribution really drawn from, where penalties or truncation made it another one. */
  readonly samplingLogprobs?: readonly number[];
  readonly text: string;
  readonly finishReason: 'stop' | 'length';
  /** The step whose policy sampled this turn. */
  readonly policyStep: number;
}

/** Only the first three carry a reward; infrastructure trouble never becomes a reward of 0. */
export type Outcome =
  'ok' | 'policy_failure' | 'truncated' | 'infra_failure' | 'judge_failure' | 'timeout' | 'cancelled';

export const rewardedOutcomes: readonly Outcome[] = ['ok', 'policy_failure', 'truncated'];

/** One sampled trajectory, before its rubric has looked at it. */
export interface Rollout {
  /** The group's ordinal in its lineage. */
  readonly group: number;
  /** Position in the group, from 0. */
  readonly index: number;
  readonly exampleId: number;
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  readonly error?: string;
}

export interface ScoredRollout extends Rollout {
  /** Weighted sum of the rubric's reward functions; null unless the outcome carries a reward. */
  readonly reward: number | null;
  /** Every reward function by name, unweighted. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** A group as it was opened: which example, for which step, from which policy version. Its ordinal is its identity. */
export interface GroupLease {
  readonly ordinal: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly epoch: number;
  /** The policy version the group starts from. */
  readonly policyStep: number;
}

export interface ScoredGroup extends GroupLease {
  readonly rollouts: readonly ScoredRollout[];
}
