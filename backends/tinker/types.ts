/**
 * The parts of the Tinker API (`/api/v1`) that Ratchet uses: those of the Python package `tinker` 0.38 and of SkyRL
 * 0.3.0. Nothing here knows of runs.
 */

/** The hosted service, or a server of one's own. What the latter does is found out by asking it. */
type TinkerFlavor = 'tinker' | 'skyrl';

/** Address of a server. The key is named, never held. */
export interface TinkerAddress {
  /** The part before `/api/v1`. */
  readonly url: string;
  /** Name of the environment variable with the key; null = no key is needed. */
  readonly apiKeyVar: string | null;
  readonly server: TinkerFlavor;
}

/** One row: the input tokens, and by name the loss's inputs, one number for each token. */
export interface Datum {
  readonly tokens: readonly number[];
  readonly inputs: Readonly<Record<string, TensorInput>>;
}

export interface TensorInput {
  readonly dtype: 'float32' | 'int64';
  readonly data: readonly number[];
}

/** `ppo`: min(ρA, clip(ρ)A); `cispo`: sg(clip(ρ))·A·ℓ; bounds are of the ratio ρ, such as 0.8 and 1.2. */
export type TinkerLoss = 'cross_entropy' | 'importance_sampling' | 'ppo' | 'cispo';

export interface LossCall {
  readonly lossFn: TinkerLoss;
  readonly config: Readonly<Record<string, number>> | null;
}

export interface AdamParams {
  readonly learning_rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weight_decay: number;
  /** 0 = none. SkyRL 0.3.0 ignores it. */
  readonly grad_clip_norm: number;
}

export interface PassOutput {
  /** One list per datum: log softmax(logits) of its targets under the weights before the step. */
  readonly logprobs: readonly (readonly number[])[];
  readonly metrics: Readonly<Record<string, number>>;
}

export interface SamplingParams {
  readonly max_tokens: number;
  readonly temperature: number;
  readonly seed?: number;
  readonly stop?: readonly string[] | readonly number[];
  readonly top_k?: number;
  readonly top_p?: number;
}

export interface SampledSequence {
  readonly stopReason: 'stop' | 'length';
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
}

export interface SampleOutput {
  readonly sequences: readonly SampledSequence[];
  /** log softmax(logits) of each token of the prompt, null for the first; absent unless requested. */
  readonly promptLogprobs: readonly (number | null)[] | null;
}

export interface ServerModel {
  readonly name: string;
  readonly contextLength: number | null;
}

/**
 * Kinds of failed calls, by the reaction that the owner of a model needs:
 *
 *     away      the server does not answer; nothing was done, or repeating it is harmless
 *     lost      the model, its session or the promise is gone, or its state is unknown: begin anew
 *     failed    the server reports a failure of its own, not of the request
 *     refused   a retry will not help
 *     missing   the named object is missing: a checkpoint that expired or was deleted
 *     full      the server has no room for another model now
 */
export type TroubleKind = 'away' | 'lost' | 'failed' | 'refused' | 'missing' | 'full';
