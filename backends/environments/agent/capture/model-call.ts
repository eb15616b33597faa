import type { JsonValue } from '../../../../core/json-value.ts';
import type { ChatMessage, MessageToolCall, ToolSchema } from '../../../../core/rl/rollout/rollout.ts';
import type { CallConstraints } from '../../types.ts';
import type { HttpError } from '../../../../engine/server/http-error.ts';

/** A program's request for a turn, whichever API it came by. */
export interface ModelCall {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  /** The first message is the call's `instructions`. */
  readonly isInstructed?: boolean;
  /** Empty = it may call nothing. */
  readonly tools: readonly ToolSchema[];
  readonly maxTokens?: number;
  readonly stop?: readonly string[];
  readonly isStreamed: boolean;
  readonly constraints: CallConstraints;
  /** Fields that a call for another model passes on, by OpenAI's names. */
  readonly fields: Readonly<Record<string, JsonValue>>;
  /** Refuses the call if it is one for the policy: it asks for what the policy cannot give. */
  readonly refusal: HttpError | null;
  /** Fields without effect on the policy: the run's file decides, or nobody knows them. */
  readonly ignored: readonly string[];
  /** What the answer's form depends on, for the form that made this. */
  readonly asked: Readonly<Record<string, unknown>>;
}

/** What the model said, as the program is told. */
export interface ModelAnswer {
  /** The same for the same turn in each attempt. */
  readonly id: string;
  readonly model: string;
  readonly createdS: number;
  readonly content: string;
  /** '' = none. */
  readonly reasoning: string;
  readonly calls: readonly MessageToolCall[];
  /** `length` = it was cut. */
  readonly finishReason: 'stop' | 'length';
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number };
  /** Sampled tokens as texts with log probabilities; null = the model gives none. */
  readonly tokens: (() => readonly { readonly text: string; readonly logprob: number }[]) | null;
}

export interface StreamEvent {
  /** Its name on the wire; absent in OpenAI's chat completions. */
  readonly event?: string;
  readonly data: Readonly<Record<string, unknown>>;
}

/** One of the APIs that programs ask by. */
export interface ApiForm {
  /** Throws an HttpError for what cannot be answered. */
  read(body: unknown, memory: CallMemory): ModelCall;
  whole(answer: ModelAnswer, call: ModelCall): Readonly<Record<string, unknown>>;
  events(answer: ModelAnswer, call: ModelCall): readonly StreamEvent[];
  error(error: HttpError): Readonly<Record<string, unknown>>;
  /** Last line of a stream, after all events. */
  readonly ending?: string;
}

/** Conversations by the id of their last answer, for programs that name it in place of the messages. */
export interface CallMemory {
  conversation(
    answerId: string,
  ): { readonly messages: readonly ChatMessage[]; readonly isInstructed: boolean } | undefined;
}
