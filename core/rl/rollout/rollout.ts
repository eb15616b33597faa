import type { OverBudget } from '../../settings/budgets.ts';
import type { JsonValue } from '../../json-value.ts';
import type { EffectCounts } from './effects.ts';
import type { ProgramRun } from './program-run.ts';
import type { RolloutFilter } from '../../settings/rollouts.ts';

/** The domain's nouns: example, turn, rollout, group. Shapes are plain data, as in the store. */

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly content: string;
  /** Calls of an assistant's message that its content does not contain; the chat template writes them. */
  readonly tool_calls?: readonly MessageToolCall[];
  /** In a tool's message: the call that it answers, and the tool's name if the environment gives it. */
  readonly tool_call_id?: string;
  readonly name?: string;
}

/** A tool call in a message, in OpenAI's format. */
export interface MessageToolCall {
  readonly id: string;
  readonly type: 'function';
  readonly function: ToolCall;
}

export interface ToolCall {
  readonly name: string;
  /** An object as JSON text, as in OpenAI's format. */
  readonly arguments: string;
}

/** A tool's description for the model, in OpenAI's format; `parameters` is a JSON schema. */
export interface ToolSchema {
  readonly type: 'function';
  readonly function: {
    readonly name: string;
    readonly description: string;
    readonly parameters: Readonly<Record<string, unknown>>;
    /** Whether calls must match the schema exactly; absent = unspecified. */
    readonly strict?: boolean;
  };
}

/** One row of an environment's dataset. `id` is its position there and never changes. */
export interface Example {
  readonly id: number;
  readonly prompt: readonly ChatMessage[];
  readonly answer: string;
  readonly info?: Readonly<Record<string, unknown>>;
}

/** A completion by the model, token by token. */
export interface Turn {
  readonly promptTokenIds: readonly number[];
  /** Sampled ids, the end-of-sequence token included when it was sampled. */
  readonly tokenIds: readonly number[];
  /**
   * The policy's log probabilities: log π(token) of softmax(logits / temperature), natural log; one per sampled id.
   * null if the server does not report them: the trainer then computes them before the step.
   */
  readonly logprobs: readonly number[] | null;
  /**
   * The sampler's log probabilities: under the distribution that was sampled, if penalties or truncation changed it.
   */
  readonly samplingLogprobs?: readonly number[];
  /** The whole completion, with tool calls in their original form. */
  readonly text: string;
  /** The part of `text` that is neither a thought nor a call; absent if that is the whole text. */
  readonly content?: string;
  /** The thoughts in `text`; absent without any. */
  readonly reasoning?: string;
  /** In order; absent if the model had no tools or called none. */
  readonly toolCalls?: readonly ToolCall[];
  /** Messages of the environment since the previous turn; absent if the prompt is only the example's. */
  readonly heard?: readonly ChatMessage[];
  /** Places of `heard`'s messages in the prompt, for roles that are trained on; absent if there are none. */
  readonly heardAt?: readonly HeardSpan[];
  readonly finishReason: 'stop' | 'length';
  /**
   * Set on turns from a chat API: they have no ids, and `text` is the content alone, beside `toolCalls`. Absent if the
   * policy is sampled token by token.
   */
  readonly said?: {
    /** null if the server does not report it. */
    readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
    readonly reasoning?: string;
    /** The server marked the text as a refusal. */
    readonly isRefusal?: true;
  };
  /** In an episode of several agents: index of the turn's trace, from 0. */
  readonly trace?: number;
  /** Set if the rollout is a program's that owns its loop; absent: each turn follows the one before it. */
  readonly call?: CallPlace;
  /** The step whose policy sampled this turn, or began to; 0 outside of runs. */
  readonly policyStep: number;
  /** The later step whose weights finished the turn, if its server exchanged them between two tokens. */
  readonly policyStepEnd?: number;
}

/** Place of a turn in the tree of a program's calls: sub-agents, parallel calls and compacted histories are branches. */
export interface CallPlace {
  /** From the turn's prompt, and how often it was asked for: the same in every attempt of a rollout. */
  readonly id: string;
  /** `id` of the turn that its conversation continues; null = it begins one, and `heard` has all of its messages. */
  readonly after: string | null;
}

/** A turn's text without thoughts and calls, as separated by the server. Rewards and replies depend on it. */
export function contentOf({ content, text }: Pick<Turn, 'content' | 'text'>): string {
  return content ?? text;
}

/** Outcomes that the policy caused itself: only these carry a reward. */
export const rewardedOutcomes = ['ok', 'policy_failure', 'truncated'] as const;
export type RewardedOutcome = (typeof rewardedOutcomes)[number];

/** A message of the environment in a prompt. */
export interface HeardSpan {
  readonly role: ChatMessage['role'];
  /**
   * Tokens that begin within its content: from the first to before the second. null if the chat template rewrites the
   * text.
   */
  readonly tokens: readonly [number, number] | null;
}

/**
 * Outcomes that the policy did not cause. None of them ever becomes a reward of 0: the rollout is not trained on, and its
 * group goes without it. A group that lost more than half of its rollouts is not trained on at all.
 *
 *     infra_failure    the environment threw, each time in a fresh one
 *     judge_failure    a reward function threw, or gave something that is not a finite number
 *     timeout          not finished in time, and dropped (`on_timeout`)
 *     stale            its oldest token grew older than max_off_policy_steps before it ended
 *     cancelled        given up on request
 *     oom              out of memory, in the inference server or in the environment
 *     overlong_prompt  its first prompt is longer than the server accepts, or than the config's max_prompt_len
 *     in_doubt         a call that is made only once was begun, and whether it happened is not known
 *     rejected         the inference server refused it, and would again; or gave no token ids, so that it cannot be trained
 */
export const failedOutcomes = [
  'infra_failure',
  'judge_failure',
  'timeout',
  'stale',
  'cancelled',
  'oom',
  'overlong_prompt',
  'in_doubt',
  'rejected',
] as const;
export type FailedOutcome = (typeof failedOutcomes)[number];

export type Outcome = RewardedOutcome | FailedOutcome;

export function isRewardedOutcome(outcome: Outcome): outcome is RewardedOutcome {
  return (rewardedOutcomes as readonly Outcome[]).includes(outcome);
}

/** Whether it ran out of time, whatever its outcome. */
export function hasTimedOut({
  outcome,
  isTimedOut,
}: {
  readonly outcome: string;
  readonly isTimedOut?: true;
}): boolean {
  return outcome === 'timeout' || isTimedOut === true;
}

export function isOutcome(value: unknown): value is Outcome {
  return ([...rewardedOutcomes, ...failedOutcomes] as readonly unknown[]).includes(value);
}

/** One sampled trajectory, before scoring. */
export interface Rollout {
  /** The group's ordinal in its lineage. */
  readonly group: number;
  /** Index in the group, from 0. */
  readonly index: number;
  readonly exampleId: number;
  /** A failed rollout has the turns that it had finished. */
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  /**
   * Digest of the system prompt that replaced the environment's own; absent if that was used, or the rollout never
   * began.
   */
  readonly prompt?: string;
  /** The error, with a traceback if there is one; bounded, without secrets. */
  readonly error?: string;
  /** State for scoring that is not in the turns: for a verifiers environment, its row of `results.jsonl`. */
  readonly record?: RolloutRow;
  /** Set by environments that score in place, while the rollout's state is alive. */
  readonly judged?: Judgement;
  /** Set if the rollout is a program's that owns its loop. */
  readonly program?: ProgramRun;
  /** In an evaluation: the number of earlier attempts, and why the first was repeated. */
  readonly playedAgain?: PlayedAgain;
  /** It ran out of time, and is `truncated`: it has the turns that were finished. */
  readonly isTimedOut?: true;
  /** What its budget had no more of, so that it is `truncated`: it has the turns that were finished. */
  readonly overBudget?: OverBudget['over'];
  /** Its calls that changed something outside of it; absent without any. */
  readonly effects?: EffectCounts;
}

/** Why a rollout was repeated: a failed environment, a dead process, an empty reply. */
export interface PlayedAgain {
  readonly count: number;
  readonly first: string;
}

/** A row of verifiers' `results.jsonl`: plain JSON, its names are verifiers' own. */
export type RolloutRow = Readonly<Record<string, JsonValue>>;

/** Result of an environment that scores by itself; `error` = it failed, and there is no reward. */
export type Judgement =
  | {
      /** Finite; higher is better. */
      readonly reward: number;
      /** Every reward function by name, unweighted; finite. */
      readonly metrics: Readonly<Record<string, number>>;
      /** Reward of each turn, weighted like the reward; absent if turns have no rewards. */
      readonly turnRewards?: readonly number[];
      /** Reward functions that threw, and count as 0 like in verifiers: errors by name. */
      readonly raised?: Readonly<Record<string, string>>;
      /** Start and end of scoring, in seconds of Unix time. */
      readonly scoredS?: readonly [number, number];
      /**
       * In an episode of several agents: the trace of each, in the order of `Turn.trace`. `reward` is the mean of the
       * trained ones.
       */
      readonly traces?: readonly AgentTrace[];
    }
  | { readonly error: string };

/** One agent of an episode, run by the policy: a trained one is a sample of its own. */
export interface AgentTrace {
  /** Its role in the environment; several agents of an episode may share one. */
  readonly agent: string;
  /** Turns of the others are in no batch. */
  readonly isTrained: boolean;
  /** It reached a limit, or ran out of time. */
  readonly isTruncated?: true;
  /** Finite; higher is better. */
  readonly reward: number;
  /** Every reward function by name, unweighted; finite. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** Only outcomes of the policy's own have rewards; the type excludes failed rollouts with a number. */
export type ScoredRollout = RewardedRollout | FailedRollout;

/** A match of a rollout filter. An enforced filter removes the rollout from the loss. */
export interface RolloutFlag {
  /** Before a batch is filled, or once it is full. */
  readonly slot: 'pre' | 'post';
  readonly name: RolloutFilter['type'];
  readonly isEnforced: boolean;
}

interface Judged extends Rollout {
  /** Every reward function by name, unweighted. */
  readonly metrics: Readonly<Record<string, number>>;
  /** See {@link Judgement}. */
  readonly turnRewards?: readonly number[];
  readonly raised?: Readonly<Record<string, string>>;
  readonly scoredS?: readonly [number, number];
  readonly traces?: readonly AgentTrace[];
  /** Matches of filters that look at tokens; absent if there are none. */
  readonly flags?: readonly RolloutFlag[];
  /**
   * The rubric's reward; `reward` is 0 because the rollout was truncated (`zero_truncated_completions`). Absent
   * otherwise.
   */
  readonly rewardBeforeCut?: number;
}

export interface RewardedRollout extends Judged {
  readonly outcome: RewardedOutcome;
  /** Weighted sum of the rubric's reward functions; finite. */
  readonly reward: number;
}

interface FailedRollout extends Judged {
  readonly outcome: FailedOutcome;
  readonly reward: null;
}

/** One finished turn of a rollout that is not finished: `turn` is its position, from 0. Calls (`Turn.call`) have no order. */
export interface RecordedTurn extends Turn {
  readonly group: number;
  readonly index: number;
  readonly turn: number;
  /** Seconds that sampling it took; absent where that was not measured. */
  readonly seconds?: number;
}

/** A rollout that was unfinished when generation ended, and the number of its kept turns. */
export interface UnfinishedRollout {
  readonly group: number;
  readonly index: number;
  readonly turns: number;
}

/** A group when leased: its example, step and policy version. Its ordinal is its identity. */
export interface GroupLease {
  readonly ordinal: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly epoch: number;
  /** The policy version the group starts from. */
  readonly policyStep: number;
  /** Digest of the system prompt for all of its rollouts; absent: the environment's own. */
  readonly prompt?: string;
  /** The temperature that the run's schedule gave when the group was leased; absent: its environment's. */
  readonly temperature?: number;
}

export interface ScoredGroup extends GroupLease {
  readonly rollouts: readonly ScoredRollout[];
  /** The example, with the system prompt in use; absent if the environment's own rows contain it. */
  readonly example?: Example;
  /** The demonstration of an example for a policy that is its own teacher. */
  readonly demonstration?: string;
}
