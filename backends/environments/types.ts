import type { UnlikeText } from './unlike-text.ts';
import type {
  ChatMessage,
  Example,
  Judgement,
  Outcome,
  Rollout,
  RolloutRow,
  ToolSchema,
  Turn,
} from '../../core/rl/rollout.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import type { TimeoutFate } from '../../config/settings/run.ts';

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
  /** How often the policy is asked in a rollout at most; missing = not known. */
  readonly maxTurns?: number;
  /** What whoever starts a run with it has to know; said at the run's start, and by `ratchet check` and `ratchet env info`. */
  readonly warnings?: readonly string[];
  /** What the policy may call in every turn; told to the model by its chat template. */
  readonly tools?: readonly ToolSchema[];
  /** Plays one example through; asks the policy for every turn. Throwing means infrastructure, never a bad answer. */
  rollout(example: Example, policy: Policy, place?: RolloutPlace): Promise<RolloutRecord>;
  /**
   * Says that a rollout of this group will not come any more, for environments that score a group in place: those that wait
   * for it are scored without it.
   */
  withdraw?(place: RolloutPlace): void;
  /**
   * Scores rollouts of one example together, in place of `rubric`, whose functions then only say names and weights. One judgement each, in
   * order. All have an outcome that carries a reward. Asked again where it throws, or where a judgement is an error.
   */
  judge?(example: Example, rollouts: readonly Rollout[], options: JudgeOptions): Promise<readonly Judgement[]>;
  /** Of one with `judge`: over what lies in the store, or while the rollout's state is alive (`RolloutRecord.judged`). */
  readonly scoring?: 'stored' | 'in_place';
  /** Of one that scores in place: only whole groups, while all of their rollouts are alive. */
  readonly scoresGroups?: boolean;
  /** Its rewards compare the rollouts of an example. */
  readonly isComparing?: boolean;
  /** What it sets for sampling by itself, as request fields; counts where whoever plays it says nothing. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
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
  /** The first example whose prompt has a picture or another part that is no text; null = none has. Missing: the first examples are looked at. */
  unlikeText?(): UnlikeText | null;
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
  /** Request fields, for policies behind an API (`RolloutPlace.sampling`, and what the environment made of it); others go by their own. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
}

/** Where a rollout belongs, and how long it is wanted. */
export interface RolloutPlace {
  /** The same for the rollouts of a group that are played together, and for no others in this process. */
  readonly group: string;
  /** Position in the group, from 0. */
  readonly index: number;
  /** How many of the group are played together: a retry plays only those that are missing. */
  readonly size: number;
  /** Which dataset the example is of. */
  readonly dataset: 'dataset' | 'evalDataset';
  /** Raised when nobody waits for it any more. */
  readonly signal: AbortSignal;
  /** Request fields that its policy is asked with, where that is an API: an environment may set further ones. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
  /** In place of the system prompt that the example begins with; '' = none. The example that is played has it already. */
  readonly systemPrompt?: string;
  /** A rollout whose reply was empty is given back unscored (`isEmptyReply`), to be played anew. */
  readonly givesBackEmpty?: boolean;
  /** Of one whose environment keeps the time itself, in Python: how long it may be played, and what becomes of it then. */
  readonly timeLimit?: { readonly seconds: number; readonly fate: TimeoutFate };
  /** Raised when no further rollout of the group is begun: what waits for others of its group waits in vain. */
  readonly brokenOff?: AbortSignal;
}

export interface JudgeOptions {
  readonly dataset: RolloutPlace['dataset'];
  readonly signal?: AbortSignal;
}

export interface RolloutRecord {
  readonly turns: readonly Turn[];
  /**
   * `truncated` when a turn ended by length, `policy_failure` when the policy broke the rules, else `ok`. Another one where
   * the environment itself tells failures apart; it is treated as one that was thrown.
   */
  readonly outcome: Outcome;
  /** Of an outcome without a reward: why. */
  readonly error?: string;
  readonly record?: RolloutRow;
  /** Scored where it was played; of several agents what `judgeAgents` gives. */
  readonly judged?: Judgement;
  /** It was not finished in time; what it had by then stands. */
  readonly isTimedOut?: true;
  /** It ended with an empty reply and was asked to say so, see `RolloutPlace.givesBackEmpty`. */
  readonly isEmptyReply?: boolean;
}

/** Weighted reward functions over a finished rollout. Scores stored rollouts, so it needs nothing live. */
export interface Rubric<State = unknown> {
  readonly functions: readonly RewardFunction<State>[];
}

type Score = number | readonly number[];

export interface RewardFunction<State = unknown> {
  readonly name: string;
  /** 0 = reported as a metric, not part of the reward. */
  readonly weight: number;
  /**
   * Finite; higher is better. A list has a number for each turn: their sum is the score, and `[trainer.advantage] turns` says what each turn
   * learns from its own. Throwing is a `judge_failure`, which carries no reward.
   */
  score(rollout: RewardInput<State>): Score | Promise<Score>;
}

/** All of it lies in the store, or follows from what lies there. */
export interface RewardInput<State = unknown> {
  readonly example: Example;
  readonly turns: readonly Turn[];
  /** What the model said last, without thoughts and calls: `turns` have those. Empty when it said nothing. */
  readonly completion: string;
  /** The whole conversation: the example's prompt, then what was heard and said, without thoughts and calls. */
  readonly messages: readonly ChatMessage[];
  /** Of environments that rebuild it, see `stateAfter`; undefined in others. */
  readonly state: State;
}
