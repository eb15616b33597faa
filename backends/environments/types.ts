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
} from '../../core/rl/rollout/rollout.ts';
import type { ProgramRun } from '../../core/rl/rollout/program-run.ts';
import type { Demonstration } from '../../core/rl/rollout/demonstration-rows.ts';
import type { RolloutNotes } from '../../core/rl/rollout/notes.ts';
import type { JsonValue } from '../../core/json-value.ts';
import type { LeasedSandbox, LeaseRequest, TakeOptions } from '../sandboxes/types.ts';
import type { Budget, BudgetUnit } from '../../core/settings/budgets.ts';
import type { TimeoutFate } from '../../core/settings/environments.ts';

/**
 * The environment port: a dataset, the course of a rollout, and a rubric. Built-in environments and a user's own module
 * both export `loadEnvironment(args): Environment`.
 */
export interface Environment {
  readonly name: string;
  readonly dataset: Dataset;
  /** Disjoint from `dataset`. */
  readonly evalDataset: Dataset;
  readonly rubric: Rubric;
  /** True if equal samples always lead to the same rollout and reward. */
  readonly isDeterministic: boolean;
  /**
   * True if an unfinished rollout goes on from what it wrote down in its notes: its finished turns are kept, and given
   * again by the policy, although equal samples may lead elsewhere.
   */
  readonly saysState?: boolean;
  /** True if a rollout has a single turn: an unfinished rollout has no finished turns to keep. */
  readonly isSingleTurn?: boolean;
  /** Most turns of a rollout; missing = unknown. */
  readonly maxTurns?: number;
  /** Warnings for the starter of a run; shown at the run's start, and by `ratchet check` and `ratchet env info`. */
  readonly warnings?: readonly string[];
  /** Tools of every turn; the chat template describes them to the model. */
  readonly tools?: readonly ToolSchema[];
  /**
   * Runs one example to its end; samples every turn from the policy. Throwing means infrastructure, never a bad answer.
   */
  rollout(example: Example, policy: Policy, place?: RolloutPlace): Promise<RolloutRecord>;
  /**
   * Announces that a rollout of this group will not come, for environments that score a group in place: waiting ones
   * are then scored without it.
   */
  withdraw?(place: RolloutPlace): void;
  /**
   * Scores rollouts of one example together, in place of `rubric`, whose functions then only give names and weights.
   * One judgement each, in order. All have a rewarded outcome. Called again if it throws, or if a judgement is an
   * error.
   */
  judge?(example: Example, rollouts: readonly Rollout[], options: JudgeOptions): Promise<readonly Judgement[]>;
  /**
   * How an environment with `judge` scores: from stored rollouts, or while the rollout's state is alive
   * (`RolloutRecord.judged`).
   */
  readonly scoring?: 'stored' | 'in_place';
  /** In-place scoring needs whole groups, while all of their rollouts are alive. */
  readonly scoresGroups?: boolean;
  /** Its rewards compare the rollouts of an example. */
  readonly isComparing?: boolean;
  /** Its own sampling settings, as request fields; used if the caller has none. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
  /**
   * The environment's state at the end of a rollout, rebuilt from its turns alone: reward functions see it as `state`.
   * Throwing is a `judge_failure`.
   */
  stateAfter?(example: Example, turns: readonly Turn[]): unknown;
  /**
   * A demonstration of the task for supervised warm-up, possibly imperfect: one answer, or the continuation of the
   * prompt up to a last message of the assistant. Missing = no `[sft]` for this environment.
   */
  demonstrate?(example: Example, random: () => number): Demonstration | Promise<Demonstration>;
}

export type { Demonstration, RolloutNotes };

export interface Dataset {
  readonly length: number;
  /** Example by position; throws RangeError outside 0 … length−1. */
  at(index: number): Example;
  /**
   * The first example whose prompt has a picture or another part beside text; null = none has. Missing: the first
   * examples are checked.
   */
  unlikeText?(): UnlikeText | null;
}

export interface Policy {
  /**
   * Samples one assistant turn; with tools, `toolCalls` has the model's calls. Rejects when the server cannot be
   * reached. In a deterministic environment, a rollout that resumes after a crash gets its earlier turns again, as long
   * as it sends the same messages.
   */
  sample(messages: readonly ChatMessage[], options?: SampleOptions): Promise<Turn>;
  /** Calls that earlier attempts of this rollout finished, set aside or not, in the order in which they did. */
  readonly earlier?: readonly Turn[];
  /**
   * Takes over calls of `earlier` that will not come again: their program goes on in a snapshot that was taken after them.
   * They are turns of the rollout as if they had been asked for. Ids that are not among `earlier` are left out.
   */
  keep?(ids: readonly string[]): void;
  /** Text of each token, for programs that ask for log probabilities; missing = the policy gives no tokens. */
  tokenTexts?(tokenIds: readonly number[]): string[];
  /** Tokens of a prompt, for programs that ask before they send it; missing = only the server knows. */
  countTokens?(messages: readonly ChatMessage[], options?: Pick<SampleOptions, 'tools'>): number;
}

export interface SampleOptions {
  readonly tools?: readonly ToolSchema[];
  /**
   * Request fields, for policies behind an API (`RolloutPlace.sampling`, and the environment's changes); other policies
   * ignore them.
   */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
  /**
   * One call of a program that owns its loop. Its turn is in the store when it returns. A turn of `Policy.earlier` with
   * the same prompt is returned in place of a new one, each once and in whatever order: calls may be parallel.
   */
  readonly call?: SampledCall;
}

/** What a call adds to the turn that it continues. */
export interface SampledCall {
  /** `Turn.call.id` of that turn; null = a new conversation. */
  readonly after: string | null;
  /** Its messages since that turn: all of them if there is none. */
  readonly heard: readonly ChatMessage[];
  /** Most tokens, where the call wants fewer than the run's file allows. */
  readonly maxTokens?: number;
  /** Texts that end the turn, besides those of the run's file. */
  readonly stop?: readonly string[];
  /** What the answer must be; a policy that cannot see to it refuses the call (`Unsupported`, its message begins with the field). */
  readonly constraints?: CallConstraints;
  /** Raised when nobody waits for the turn any more; it then need not be finished. */
  readonly signal?: AbortSignal;
}

/** Demands of a call on its answer, in the words of OpenAI's chat completions. */
export interface CallConstraints {
  /** Set if a call of a tool must be made: `"required"`, or the name of the tool. */
  readonly toolChoice?: JsonValue;
  readonly responseFormat?: JsonValue;
}

/** The place of a rollout, and the signal that cancels it. */
export interface RolloutPlace {
  /** Equal for the rollouts of a group that run together, and unique in this process. */
  readonly group: string;
  /** Index in the group, from 0. */
  readonly index: number;
  /** Number of rollouts of the group that run together: a retry runs only the missing ones. */
  readonly size: number;
  readonly dataset: 'dataset' | 'evalDataset';
  /** Raised when the result is no longer needed. */
  readonly signal: AbortSignal;
  /** Request fields of its policy, if that is an API: an environment may add further ones. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
  /** Replaces the system prompt of the example; '' = none. The given example has it already. */
  readonly systemPrompt?: string;
  /** A rollout with an empty reply is returned unscored (`isEmptyReply`), to be repeated. */
  readonly givesBackEmpty?: boolean;
  /** Time limit and its outcome, for environments that enforce it themselves; `overBudget`: it is that of a budget. */
  readonly timeLimit?: {
    readonly seconds: number;
    readonly fate: TimeoutFate;
    readonly overBudget?: BudgetUnit | 'wallS';
    /** Waiting for a sandbox counts: it is the end of all work, or of wall time. */
    readonly countsWaiting?: boolean;
  };
  /** Raised when the group gets no further rollouts: waiting for others of the group is then in vain. */
  readonly brokenOff?: AbortSignal;
  /** What earlier attempts at this rollout wrote down; missing outside of runs, evaluations and searches. */
  readonly notes?: RolloutNotes;
  /**
   * What the rollout may use; missing = nothing is limited. Turns of the policy and their tool calls are reserved by
   * `Policy.sample`: the environment reserves what else it uses, such as sandboxes and other models.
   */
  readonly budget?: Budget;
  /** Sandboxes for this rollout; missing outside of runs, evaluations and searches. */
  readonly sandboxes?: RolloutSandboxes;
}

/** Takes sandboxes of the kind that the environment's entry names, under leases that this rollout owns. */
export interface RolloutSandboxes {
  take(request: LeaseRequest, options: Pick<TakeOptions, 'deadlineS' | 'waitS' | 'signal'>): Promise<LeasedSandbox>;
  /** Begins the keys of this rollout's snapshots. */
  readonly snapshotPrefix: string;
  /** Removes snapshots whose keys begin so. */
  removeSnapshots(prefix: string): Promise<void>;
}

export interface JudgeOptions {
  readonly dataset: RolloutPlace['dataset'];
  readonly signal?: AbortSignal;
}

export interface RolloutRecord {
  readonly turns: readonly Turn[];
  /**
   * `truncated` when a turn ended by length, `policy_failure` when the policy broke the rules, else `ok`. An
   * environment that classifies failures itself may return another outcome, which is treated like a thrown error.
   */
  readonly outcome: Outcome;
  /** The reason for an outcome without a reward. */
  readonly error?: string;
  readonly record?: RolloutRow;
  /** Score from in-place scoring; with several agents, the result of `judgeAgents`. */
  readonly judged?: Judgement;
  /** Set if the rollout is a program's that owns its loop. */
  readonly program?: ProgramRun;
  /** It ran out of time; its finished turns stay. */
  readonly isTimedOut?: true;
  /** The limit of its budget that it reached; its finished turns stay. */
  readonly overBudget?: BudgetUnit | 'wallS';
  /** It ended with an empty reply, which was to be reported, see `RolloutPlace.givesBackEmpty`. */
  readonly isEmptyReply?: boolean;
}

/** Weighted reward functions over a finished rollout. Scores stored rollouts, so it needs no live state. */
export interface Rubric<State = unknown> {
  readonly functions: readonly RewardFunction<State>[];
}

type Score = number | readonly number[];

export interface RewardFunction<State = unknown> {
  readonly name: string;
  /** 0 = reported as a metric, not part of the reward. */
  readonly weight: number;
  /**
   * Finite; higher is better. A list has a number for each turn: their sum is the score, and `[trainer.advantage]
   * turns` decides how turns learn from their own. Throwing is a `judge_failure`, which carries no reward.
   */
  score(rollout: RewardInput<State>): Score | Promise<Score>;
}

/** Everything here is stored, or follows from stored data. */
export interface RewardInput<State = unknown> {
  readonly example: Example;
  readonly turns: readonly Turn[];
  /** The model's last message without thoughts and calls, which are in `turns`. Empty without a message. */
  readonly completion: string;
  /** The whole conversation: the example's prompt, then both sides in order, without thoughts and calls. */
  readonly messages: readonly ChatMessage[];
  /** Set by environments with `stateAfter`; else undefined. */
  readonly state: State;
}
