import type { ChatMessage, ToolCall, ToolSchema } from '../../core/rl/rollout.ts';
import type { PolicyVersion } from '../../core/rl/run-state.ts';
import type { SamplingSpec } from '../../config/run-spec.ts';

/** What a server needs to know to hold a version: its name there, its digest, and where its files lie on this machine. */
export interface ServedPolicy {
  readonly name: string;
  readonly version: PolicyVersion;
  readonly folder: string;
  /** What strftime_now tells its chat template, as `minuteOf` writes it; missing = the clock's. */
  readonly templateTime?: string;
  /** Roots of servers that hold other weights under its name, as its broadcast found: nothing of it is asked there. */
  readonly avoid?: readonly string[];
}

/** What changes the distribution, or the end of a turn, beyond the temperature; nothing where left out. */
export type SamplingModifiers = Partial<
  Omit<SamplingSpec, 'maxTokens' | 'contextTokens' | 'temperature' | 'seed' | 'templateArguments'>
>;

/** Whose turn it is: what several servers keep together. Safe to send as a header. */
export interface SamplePlace {
  /** One rollout: its turns go to one server while that can be asked, which has read the conversation so far. */
  readonly session?: string | undefined;
  /** Its group: the rollouts of one example begin with the same tokens. */
  readonly group?: string | undefined;
}

export interface CompareRequest extends ScoreRequest {
  readonly expected: readonly number[];
  readonly threshold: number;
}

export interface SampleRequest extends SamplingModifiers, SamplePlace {
  readonly policy: ServedPolicy;
  readonly promptTokenIds: readonly number[];
  readonly maxTokens: number;
  /** 0 = greedy. */
  readonly temperature: number;
  /** Random numbers of this turn are keyed by it and the position, never by the neighbours in a batch. */
  readonly seed: number;
  /** What is said will be trained on: a server whose log probabilities are of no use for that is refused (`Unsupported`). */
  readonly isTrained?: boolean;
  readonly signal?: AbortSignal | undefined;
}

export interface ScoreRequest {
  readonly policy: ServedPolicy;
  readonly tokenIds: readonly number[];
  readonly positions: readonly number[];
  /** What they should be: where there are several servers, the one that is furthest off answers. */
  readonly expected?: readonly number[];
}

/** How far one server's logprobs of the canary lie from those expected: the mean of |Δ|, in nats. */
export interface ServerDrift {
  /** Its root, or a name for the only one. */
  readonly server: string;
  readonly difference: number;
  /** It was given the weights once more before it was this near. */
  readonly isReloaded?: true;
}

export interface PromptScoreRequest {
  readonly policy: ServedPolicy;
  readonly prompts: readonly (readonly number[])[];
  readonly signal?: AbortSignal | undefined;
}

export interface Sample {
  readonly tokenIds: readonly number[];
  /** The policy's: log softmax(logits / temperature) at each sampled token. null where the server tells the sampler's alone, or neither. */
  readonly logprobs: readonly number[] | null;
  /** The sampler's: the same of the distribution really drawn from; absent where it is no other, or nobody tells. */
  readonly samplingLogprobs?: readonly number[];
  readonly finishReason: 'stop' | 'length';
  /** The step of the weights it began with, where the server exchanges weights in place and has later ones; absent: as asked. */
  readonly servedStep?: number;
  /** The step of the weights it ended with, where they were exchanged between two of its tokens; absent: as it began. */
  readonly servedThrough?: number;
}

/** One turn, asked for by its messages: the server renders them with the chat template of its own. */
export interface ChatRequest extends SamplingModifiers, SamplePlace {
  readonly policy: ServedPolicy;
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly ToolSchema[];
  readonly maxTokens: number;
  /** 0 = greedy. */
  readonly temperature: number;
  /** Missing = the server draws as it likes. */
  readonly seed?: number;
  /** Training needs the ids that were sampled; evaluations do without, and so may ask servers that have none. */
  readonly tokens: 'required' | 'none';
  readonly signal?: AbortSignal | undefined;
}

export interface ChatSample {
  readonly text: string;
  /** What it thought before, where the server tells it apart. */
  readonly reasoning?: string;
  readonly toolCalls?: readonly ToolCall[];
  /** The text is a refusal, which the server tells apart from content. */
  readonly isRefusal?: true;
  readonly finishReason: 'stop' | 'length';
  /** null where the server gives none, as are the two below. */
  readonly promptTokenIds: readonly number[] | null;
  readonly tokenIds: readonly number[] | null;
  /** One per sampled id, as in {@link Sample}. */
  readonly logprobs: readonly number[] | null;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
}

/**
 * What came of asking servers to keep a version: `held`, where at least one does; `full`, where all that can have no room for it
 * now; `single`, where each of them samples from the weights it was given last and from no others.
 */
export type HoldOutcome = 'held' | 'full' | 'single';

/**
 * The inference port. A request names its version. A server that no longer holds it, for instance because it was
 * restarted, is brought to it and asked again: a version is a desired state, not an event.
 */
export interface Inference {
  /**
   * Throws `InferenceUnavailable` (ask again later), `OutOfMemory` (ask for less), or what asking again does not help:
   * `PromptTooLong`, of this prompt, and `InferenceRejected`.
   */
  sample(request: SampleRequest): Promise<Sample>;
  /** The same by messages; throws `InferenceRejected` where token ids are required and the server gives none. Absent where it cannot. */
  chat?(request: ChatRequest): Promise<ChatSample>;
  /**
   * log softmax(logits) of `tokenIds[i]` after the tokens before it, for each of `positions` (≥ 1), temperature 1; absent,
   * or null, where the server cannot say.
   */
  score?(request: ScoreRequest): Promise<readonly number[] | null>;
  /**
   * How far each server is off `expected`; one that is off by more than `threshold` is given the weights once more and asked
   * again. Absent where `score` will do: then there is one server.
   */
  compare?(request: CompareRequest): Promise<readonly ServerDrift[]>;
  /**
   * What its servers say that they compute in (`float32`, `bfloat16`, …), the least exact of them where they differ; null where
   * that is not told. Absent where it is known without asking, or by nobody.
   */
  floatType?(): Promise<string | null>;
  /**
   * log softmax(logits) of every token of every prompt after the tokens before it, temperature 1; 0 for the first ones, which have
   * none before them. What a teacher is asked. Absent where it cannot; throws as `sample` does, and `InferenceRejected` where
   * the server gives none.
   */
  promptLogprobs?(request: PromptScoreRequest): Promise<readonly (readonly number[])[]>;
  /** Idempotent; returns when every server that can be reached has confirmed that it holds the version with this digest. */
  bringTo(policy: ServedPolicy): Promise<void>;
  /**
   * Keeps a version at the servers for so many seconds, whatever they are brought to meanwhile; asked again, for longer. They are
   * brought to it where they do not hold it, unless they hold only one (`single`): then nothing is changed. Absent where servers
   * hold whatever they are asked for.
   */
  hold?(policy: ServedPolicy, holder: string, seconds: number): Promise<HoldOutcome>;
  /** Idempotent, and of no matter where it fails: what is not asked for again is released by itself. */
  release?(policy: ServedPolicy, holder: string): Promise<void>;
  /**
   * Names the servers that do not answer, with the time they went silent; null while at least one answers. Absent if the adapter cannot
   * tell.
   */
  silence?(): string | null;
  /** Nothing more is asked; what is under way may end. */
  close?(): void;
}
