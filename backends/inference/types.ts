import type { ChatMessage, ToolCall, ToolSchema } from '../../core/rl/rollout/rollout.ts';
import type { JsonValue } from '../../core/json-value.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import type { SamplingSettings } from '../../core/settings/rollouts.ts';

/** Parameters beyond the temperature that change the distribution, or the end of a turn; neutral when missing. */
export type SamplingModifiers = Partial<
  Omit<SamplingSettings, 'maxTokens' | 'contextTokens' | 'temperature' | 'seed' | 'templateArguments'>
>;

/** Keys of affinity among several servers. Safe to send as a header. */
export interface SamplePlace {
  /** One rollout: its turns stay on one server while that is available, since it has read the conversation so far. */
  readonly session?: string | undefined;
  /** Its group: the rollouts of one example begin with common tokens. */
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
  /**
   * Form of the answer, as OpenAI's `response_format`. The distribution is then another one. Only vLLM sees to it; other
   * adapters throw `Unsupported`.
   */
  readonly responseFormat?: JsonValue;
  /** The turn will be trained on: a server whose log probabilities are unfit for that is refused (`Unsupported`). */
  readonly isTrained?: boolean;
  readonly signal?: AbortSignal | undefined;
}

export interface ScoreRequest {
  readonly policy: ServedPolicy;
  readonly tokenIds: readonly number[];
  readonly positions: readonly number[];
  /** Expected logprobs: with several servers, the one that deviates most answers. */
  readonly expected?: readonly number[];
}

/** Distance of one server's canary logprobs from the expected ones: the mean of |Δ|, in nats. */
export interface ServerDrift {
  /** Its root, or a name for the only one. */
  readonly server: string;
  readonly difference: number;
  /** It was given the weights again before it was this near. */
  readonly isReloaded?: true;
}

export interface PromptScoreRequest {
  readonly policy: ServedPolicy;
  readonly prompts: readonly (readonly number[])[];
  readonly signal?: AbortSignal | undefined;
}

export interface Sample {
  readonly tokenIds: readonly number[];
  /**
   * The policy's logprobs: log softmax(logits / temperature) at each sampled token. null if the server reports only the
   * sampler's, or neither.
   */
  readonly logprobs: readonly number[] | null;
  /** The sampler's logprobs, under the distribution that was sampled; absent if it is the same, or not reported. */
  readonly samplingLogprobs?: readonly number[];
  readonly finishReason: 'stop' | 'length';
  /**
   * The step of its initial weights, if the server exchanges weights in place and has later ones; absent: as requested.
   */
  readonly servedStep?: number;
  /** The step of its final weights, if they were exchanged between two of its tokens; absent: as it began. */
  readonly servedThrough?: number;
}

/** One turn, requested by its messages: the server renders them with its own chat template. */
export interface ChatRequest extends SamplingModifiers, SamplePlace {
  readonly policy: ServedPolicy;
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly ToolSchema[];
  readonly maxTokens: number;
  /** 0 = greedy. */
  readonly temperature: number;
  /** Missing = the server chooses. */
  readonly seed?: number;
  /** Training needs the sampled ids; evaluations do not, and so may use servers without them. */
  readonly tokens: 'required' | 'none';
  readonly signal?: AbortSignal | undefined;
}

export interface ChatSample {
  readonly text: string;
  /** Thoughts before the text, if the server separates them. */
  readonly reasoning?: string;
  readonly toolCalls?: readonly ToolCall[];
  /** The text is a refusal, which the server separates from content. */
  readonly isRefusal?: true;
  readonly finishReason: 'stop' | 'length';
  /** null if the server gives none, like the two below. */
  readonly promptTokenIds: readonly number[] | null;
  readonly tokenIds: readonly number[] | null;
  /** One per sampled id, as in {@link Sample}. */
  readonly logprobs: readonly number[] | null;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
}

/**
 * Result of a request to keep a version: `held`, at least one server does; `full`, those that can have no room now;
 * `single`, each samples only from its latest weights.
 */
export type HoldOutcome = 'held' | 'full' | 'single';

/**
 * The inference port. A request names its version. A server that no longer holds it, for instance after a restart,
 * loads it and is asked again: a version is a desired state, not an event.
 */
export interface Inference {
  /**
   * Throws `InferenceUnavailable` (retry later), `OutOfMemory` (retry with less), or errors that a retry does not fix:
   * `PromptTooLong`, of this prompt, and `InferenceRejected`.
   */
  sample(request: SampleRequest): Promise<Sample>;
  /**
   * Samples from messages; throws `InferenceRejected` if token ids are required and the server gives none. Absent if
   * the adapter has no chat API.
   */
  chat?(request: ChatRequest): Promise<ChatSample>;
  /**
   * log softmax(logits) of `tokenIds[i]` after the tokens before it, for each of `positions` (≥ 1), temperature 1;
   * absent, or null, if the server cannot compute it.
   */
  score?(request: ScoreRequest): Promise<readonly number[] | null>;
  /**
   * Deviation of each server from `expected`; one beyond `threshold` is given the weights again and compared once more.
   * Absent if `score` suffices: then there is one server.
   */
  compare?(request: CompareRequest): Promise<readonly ServerDrift[]>;
  /**
   * The float type that its servers report (`float32`, `bfloat16`, …), the least exact if they differ; null if not
   * reported. Absent if it is known otherwise, or not at all.
   */
  floatType?(): Promise<string | null>;
  /**
   * log softmax(logits) of every token of every prompt after the tokens before it, temperature 1; 0 for the first ones.
   * Used for teachers. Absent if the adapter cannot; throws like `sample`, and `InferenceRejected` if the server gives
   * none.
   */
  promptLogprobs?(request: PromptScoreRequest): Promise<readonly (readonly number[])[]>;
  /** Idempotent; returns when every server that can be reached has confirmed that it holds the version with this digest. */
  bringTo(policy: ServedPolicy): Promise<void>;
  /**
   * Keeps a version at the servers for so many seconds, whatever they load meanwhile; a repeated call extends the time.
   * They load it if they do not hold it, unless they hold only one (`single`): then nothing changes. Absent if servers
   * hold every requested version.
   */
  hold?(policy: ServedPolicy, holder: string, seconds: number): Promise<HoldOutcome>;
  /** Idempotent, and may fail: unused versions are released by themselves. */
  release?(policy: ServedPolicy, holder: string): Promise<void>;
  /**
   * The run of this name has ended: servers forget what they were given for it. Idempotent, and may fail. A version that
   * is asked for later is loaded again. Absent if servers forget by themselves.
   */
  leave?(run: string): Promise<void>;
  /**
   * Names the servers that do not answer, with the time they went silent; null while at least one answers. Absent if the adapter cannot
   * tell.
   */
  silence?(): string | null;
  /** Refuses further requests; those in progress may end. */
  close?(): void;
}
