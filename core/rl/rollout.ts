import type { JsonValue, RolloutFilterSpec } from '../../config/run-spec.ts';

/** The words of the domain: example, turn, rollout, group. Shapes are plain data, as they lie in the store. */

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  readonly content: string;
  /** Of the assistant, where the content does not say them already; the chat template writes them. */
  readonly tool_calls?: readonly MessageToolCall[];
  /** Of a tool: which call it answers, and which tool it is, where the environment says so. */
  readonly tool_call_id?: string;
  readonly name?: string;
}

/** A call of a tool in a message, as OpenAI's API has it. */
export interface MessageToolCall {
  readonly id: string;
  readonly type: 'function';
  readonly function: ToolCall;
}

/** A tool that the model called. */
export interface ToolCall {
  readonly name: string;
  /** A text of JSON, an object, as OpenAI's API has it. */
  readonly arguments: string;
}

/** What the model is told of a tool, as OpenAI's API has it; `parameters` is a JSON schema. */
export interface ToolSchema {
  readonly type: 'function';
  readonly function: {
    readonly name: string;
    readonly description: string;
    readonly parameters: Readonly<Record<string, unknown>>;
    /** Whether calls must keep to the schema to the letter; absent = nobody says. */
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

/** What the model said in one turn, token by token. */
export interface Turn {
  readonly promptTokenIds: readonly number[];
  /** Sampled ids, the end-of-sequence token included when it was sampled. */
  readonly tokenIds: readonly number[];
  /**
   * The policy's: log π(token) of softmax(logits / temperature), natural log; one per sampled id. null where the server does not
   * tell them: then the trainer computes them before the step.
   */
  readonly logprobs: readonly number[] | null;
  /** The sampler's: the same under the distribution really drawn from, where penalties or truncation made it another one. */
  readonly samplingLogprobs?: readonly number[];
  /** All that was said, calls of tools included as they were written. */
  readonly text: string;
  /** The part of `text` that is neither a thought nor a call; absent if that is the whole text. */
  readonly content?: string;
  /** The thoughts in `text`; absent where there are none. */
  readonly reasoning?: string;
  /** In order; absent where the model had no tools or called none. */
  readonly toolCalls?: readonly ToolCall[];
  /** What the environment had said since the turn before; absent where the example's prompt is all there was. */
  readonly heard?: readonly ChatMessage[];
  /** Where messages of `heard` stand in the prompt, of roles that are learned; absent where none is. */
  readonly heardAt?: readonly HeardSpan[];
  readonly finishReason: 'stop' | 'length';
  /**
   * Of a turn that an API gave for messages: it has no ids, `text` is the content alone, `toolCalls` stand beside it. Absent where the
   * policy was asked token by token.
   */
  readonly said?: {
    /** null where the server does not say. */
    readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
    readonly reasoning?: string;
  };
  /** Of an episode in which the policy played several agents: which of its traces it is of, from 0. */
  readonly trace?: number;
  /** The step whose policy sampled this turn, or began to; 0 where no run did. */
  readonly policyStep: number;
  /** The later step whose weights it ended with, where its server exchanged them between two of its tokens. */
  readonly policyStepEnd?: number;
}

/** What a turn says: its text without thoughts and calls, as a server that tells them apart has it. Rewards and replies depend on it. */
export function contentOf({ content, text }: Pick<Turn, 'content' | 'text'>): string {
  return content ?? text;
}

/** What the policy brought about itself: only these carry a reward. */
export const rewardedOutcomes = ['ok', 'policy_failure', 'truncated'] as const;
export type RewardedOutcome = (typeof rewardedOutcomes)[number];

/** A message of the environment in a prompt. */
export interface HeardSpan {
  readonly role: ChatMessage['role'];
  /** Tokens that begin in its content: from the first to before the second. null where the chat template writes another text. */
  readonly tokens: readonly [number, number] | null;
}

/**
 * What happened to a rollout from outside. None of them ever becomes a reward of 0: the rollout is not trained, and its group is
 * without it; of a group that lost more than half nothing is.
 *
 *     infra_failure    the environment threw, each time in a fresh one
 *     judge_failure    a reward function threw, or gave something that is not a finite number
 *     timeout          not finished in time, and dropped (`on_timeout`)
 *     stale            its oldest token grew older than max_off_policy_steps while it was played
 *     cancelled        given up because someone asked for it
 *     oom              out of memory, in the inference server or in the environment
 *     overlong_prompt  its first prompt is longer than the server takes, or than the config's max_prompt_len
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
  'rejected',
] as const;
export type FailedOutcome = (typeof failedOutcomes)[number];

export type Outcome = RewardedOutcome | FailedOutcome;

export function isRewardedOutcome(outcome: Outcome): outcome is RewardedOutcome {
  return (rewardedOutcomes as readonly Outcome[]).includes(outcome);
}

/** Whether it was not finished in time, whatever became of it. */
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

/** One sampled trajectory, before its rubric has looked at it. */
export interface Rollout {
  /** The group's ordinal in its lineage. */
  readonly group: number;
  /** Position in the group, from 0. */
  readonly index: number;
  readonly exampleId: number;
  /** Of a rollout that failed: the turns it had finished by then. */
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  /** Digest of the system prompt that it was played with in place of the environment's own; absent: that one, or it was not played. */
  readonly prompt?: string;
  /** What went wrong, with the traceback where there is one; bounded, without secrets. */
  readonly error?: string;
  /** What the environment needs to score it and the turns do not say: of a verifiers environment, its row of `results.jsonl`. */
  readonly record?: RolloutRow;
  /** By an environment that scores in place, while the rollout's state was alive. */
  readonly judged?: Judgement;
  /** Of an evaluation: how often it was played anew before, and why first. */
  readonly playedAgain?: PlayedAgain;
  /** It was not finished in time, and is `truncated`: its turns are those that it had finished by then. */
  readonly isTimedOut?: true;
}

/** What spoiled a rollout, each time it was played before: its environment, a process that died, a reply without anything in it. */
export interface PlayedAgain {
  readonly count: number;
  readonly first: string;
}

/** A row of verifiers' `results.jsonl`: plain JSON, its names are verifiers' own. */
export type RolloutRow = Readonly<Record<string, JsonValue>>;

/** What an environment that scores by itself says of one rollout; `error` = it could not, and there is no reward. */
export type Judgement =
  | {
      /** Finite; higher is better. */
      readonly reward: number;
      /** Every reward function by name, unweighted; finite. */
      readonly metrics: Readonly<Record<string, number>>;
      /** Of each turn, weighted as the reward is; absent where turns are not rewarded. */
      readonly turnRewards?: readonly number[];
      /** Reward functions that threw, and count as 0 as verifiers has it: by name, what they threw. */
      readonly raised?: Readonly<Record<string, string>>;
      /** When it was scored, from and to, in seconds of Unix time. */
      readonly scoredS?: readonly [number, number];
      /** Where the policy played several agents: what each did, in the order that turns count them. `reward` is the mean of the trained ones. */
      readonly traces?: readonly AgentTrace[];
    }
  | { readonly error: string };

/** One agent of an episode, played by the policy: a trained one is a sample of its own. */
export interface AgentTrace {
  /** Its role, as the environment calls it; several of an episode may have the same. */
  readonly agent: string;
  /** Turns of the others are in no batch. */
  readonly isTrained: boolean;
  /** It reached a limit, or was not finished in time. */
  readonly isTruncated?: true;
  /** Finite; higher is better. */
  readonly reward: number;
  /** Every reward function by name, unweighted; finite. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** A reward belongs to an outcome of the policy's own; the type knows no failed rollout with a number. */
export type ScoredRollout = RewardedRollout | FailedRollout;

/** What a filter of rollouts found. One that is enforced takes the rollout's loss away. */
export interface RolloutFlag {
  /** Before a batch is filled, or once it is full. */
  readonly slot: 'pre' | 'post';
  readonly name: RolloutFilterSpec['type'];
  readonly isEnforced: boolean;
}

interface Judged extends Rollout {
  /** Every reward function by name, unweighted. */
  readonly metrics: Readonly<Record<string, number>>;
  /** As {@link Judgement} has them. */
  readonly turnRewards?: readonly number[];
  readonly raised?: Readonly<Record<string, string>>;
  readonly scoredS?: readonly [number, number];
  readonly traces?: readonly AgentTrace[];
  /** Of filters that look at tokens; absent where none of them matched. */
  readonly flags?: readonly RolloutFlag[];
  /** Its rubric gave this; its reward is 0 because it was cut (`zero_truncated_completions`). Absent where it was not. */
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

/** One finished turn of a rollout that is not finished: `turn` is its position, from 0. */
export interface RecordedTurn extends Turn {
  readonly group: number;
  readonly index: number;
  readonly turn: number;
}

/** A rollout that generation ended without, and how many turns of it are kept. */
export interface UnfinishedRollout {
  readonly group: number;
  readonly index: number;
  readonly turns: number;
}

/** A group as it was opened: which example, for which step, from which policy version. Its ordinal is its identity. */
export interface GroupLease {
  readonly ordinal: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly epoch: number;
  /** The policy version the group starts from. */
  readonly policyStep: number;
  /** Digest of the system prompt that all of it is played with; absent: the environment's own. */
  readonly prompt?: string;
  /** By the run's schedule, as it was when the group was opened; absent: its environment's. */
  readonly temperature?: number;
}

export interface ScoredGroup extends GroupLease {
  readonly rollouts: readonly ScoredRollout[];
  /** What was asked, with the system prompt in use; absent where the environment writes rows of its own, which say it. */
  readonly example?: Example;
  /** What tells the policy how its example is done, where it is its own teacher. */
  readonly demonstration?: string;
}
