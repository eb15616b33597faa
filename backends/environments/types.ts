import type { ChatMessage, Example, Turn } from '../../core/rl/rollout.ts';

/**
 * The environment port: a dataset, how a rollout goes, and a rubric. Built-in environments and a user's own module
 * both export `loadEnvironment(args): Environment`.
 */
export interface Environment {
  readonly name: string;
  readonly dataset: Dataset;
  /** Held out from `dataset`. */
  readonly evalDataset: Dataset;
  readonly rubric: Rubric;
  /** True when the same samples always lead to the same rollout and reward. */
  readonly isDeterministic: boolean;
  /** True when the policy is asked once per rollout: there are no finished turns of an unfinished rollout to keep. */
  readonly isSingleTurn?: boolean;
  /** Plays one example through; asks the policy for every turn. Throwing means infrastructure, never a bad answer. */
  rollout(example: Example, policy: Policy): Promise<RolloutRecord>;
  /** A demonstration of the task for supervised warm-up, possibly imperfect. Missing = no `[sft]` for this environment. */
  demonstrate?(example: Example, random: () => number): string;
}

export interface Dataset {
  readonly length: number;
  /** Example by position; throws RangeError outside 0 … length−1. */
  at(index: number): Example;
}

/** What an environment may ask of the model. */
export interface Policy {
  /**
   * Samples one assistant turn. Rejects when the server cannot be reached. In an environment that is deterministic, a
   * rollout that goes on after a crash gets the turns it had, as long as it says the same to the policy.
   */
  sample(messages: readonly ChatMessage[]): Promise<Turn>;
}

export interface RolloutRecord {
  readonly turns: readonly Turn[];
  /** `truncated` when a turn ended by length, `policy_failure` when the policy broke the rules, else `ok`. */
  readonly outcome: 'ok' | 'policy_failure' | 'truncated';
}

/** Weighted reward functions over a finished rollout. Scores stored rollouts, so it needs nothing live. */
export interface Rubric {
  readonly functions: readonly RewardFunction[];
}

export interface RewardFunction {
  readonly name: string;
  /** 0 = reported as a metric, not part of the reward. */
  readonly weight: number;
  score(rollout: {
    readonly example: Example;
    readonly turns: readonly Turn[];
    readonly completion: string;
  }): number | Promise<number>;
}
