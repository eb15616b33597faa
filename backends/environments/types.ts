import type { ChatMessage, Example, ToolSchema, Turn } from '../../core/rl/rollout.ts';

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
  /** What whoever starts a run with it has to know; said at the run's start, and by `ratchet check` and `ratchet env info`. */
  readonly warnings?: readonly string[];
  /** What the policy may call in every turn; told to the model by its chat template. */
  readonly tools?: readonly ToolSchema[];
  /** Plays one example through; asks the policy for every turn. Throwing means infrastructure, never a bad answer. */
  rollout(example: Example, policy: Policy): Promise<RolloutRecord>;
  /**
   * What the environment knew at the end of a rollout, made again from its turns alone: reward functions see it as `state`.
   * Throwing is a `judge_failure`.
   */
  stateAfter?(example: Example, turns: readonly Turn[]): unknown;
  /**
   * A demonstration of the task for supervised warm-up, possibly imperfect: one answer, or what follows the prompt in a
   * conversation that ends with the assistant. Missing = no `[sft]` for this environment.
   */
  demonstrate?(example: Example, random: () => number): Demonstration | Promise<Demonstration>;
}

export type Demonstration = string | readonly ChatMessage[];

export interface Dataset {
  readonly length: number;
  /** Example by position; throws RangeError outside 0 … length−1. */
  at(index: number): Example;
}

/** What an environment may ask of the model. */
export interface Policy {
  /**
   * Samples one assistant turn; with tools, `toolCalls` has those that the model called. Rejects when the server cannot be
   * reached. In an environment that is deterministic, a rollout that goes on after a crash gets the turns it had, as long
   * as it says the same to the policy.
   */
  sample(messages: readonly ChatMessage[], options?: SampleOptions): Promise<Turn>;
}

export interface SampleOptions {
  readonly tools?: readonly ToolSchema[];
}

export interface RolloutRecord {
  readonly turns: readonly Turn[];
  /** `truncated` when a turn ended by length, `policy_failure` when the policy broke the rules, else `ok`. */
  readonly outcome: 'ok' | 'policy_failure' | 'truncated';
}

/** Weighted reward functions over a finished rollout. Scores stored rollouts, so it needs nothing live. */
export interface Rubric<State = unknown> {
  readonly functions: readonly RewardFunction<State>[];
}

export interface RewardFunction<State = unknown> {
  readonly name: string;
  /** 0 = reported as a metric, not part of the reward. */
  readonly weight: number;
  /** Finite; higher is better. Throwing is a `judge_failure`, which carries no reward. */
  score(rollout: RewardInput<State>): number | Promise<number>;
}

/** All of it lies in the store, or follows from what lies there. */
export interface RewardInput<State = unknown> {
  readonly example: Example;
  readonly turns: readonly Turn[];
  /** What the model said last; empty when it said nothing. */
  readonly completion: string;
  /** The whole conversation: the example's prompt, then what was heard and said. */
  readonly messages: readonly ChatMessage[];
  /** Of environments that rebuild it, see `stateAfter`; undefined in others. */
  readonly state: State;
}
