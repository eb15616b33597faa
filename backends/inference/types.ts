import type { PolicyVersion } from '../../core/rl/run-state.ts';
import type { SamplingSpec } from '../../core/spec/run-spec.ts';

/** What a server needs to know to hold a version: its name there, its digest, and where its files lie on this machine. */
export interface ServedPolicy {
  readonly name: string;
  readonly version: PolicyVersion;
  readonly folder: string;
}

/** What changes the distribution, or the end of a turn, beyond the temperature; nothing where left out. */
export type SamplingModifiers = Partial<Omit<SamplingSpec, 'maxTokens' | 'temperature' | 'seed' | 'templateArguments'>>;

export interface SampleRequest extends SamplingModifiers {
  readonly policy: ServedPolicy;
  readonly promptTokenIds: readonly number[];
  readonly maxTokens: number;
  /** 0 = greedy. */
  readonly temperature: number;
  /** Random numbers of this turn are keyed by it and the position, never by the neighbours in a batch. */
  readonly seed: number;
  readonly signal?: AbortSignal | undefined;
}

export interface ScoreRequest {
  readonly policy: ServedPolicy;
  readonly tokenIds: readonly number[];
  readonly positions: readonly number[];
}

export interface Sample {
  readonly tokenIds: readonly number[];
  /** log softmax(logits / temperature) at each sampled token. */
  readonly logprobs: readonly number[];
  /** The same of the distribution really drawn from; absent where it is no other. */
  readonly samplingLogprobs?: readonly number[];
  readonly finishReason: 'stop' | 'length';
}

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
  /**
   * log softmax(logits) of `tokenIds[i]` after the tokens before it, for each of `positions` (≥ 1), temperature 1; absent,
   * or null, where the server cannot say.
   */
  score?(request: ScoreRequest): Promise<readonly number[] | null>;
  /** Idempotent; returns when every server has confirmed that it holds the version with this digest. */
  bringTo(policy: ServedPolicy): Promise<void>;
}
