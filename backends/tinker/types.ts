/**
 * The words of the Tinker API (`/api/v1`), as far as Ratchet speaks it: those of the Python package `tinker` 0.38 and of
 * SkyRL 0.3.0. Nothing here knows of runs.
 */

/** What a server is, beyond its words. */
export type TinkerFlavor = 'tinker' | 'skyrl';

/** How the server's loss is made of the tokens' losses: see {@link rescaled}. */
export type LossReduction = 'sum' | 'sequence_mean';

/** Where a server is. The key is named, never held. */
export interface TinkerAddress {
  /** Before `/api/v1`. */
  readonly url: string;
  /** Name of the environment variable with the key; null = the server asks for none. */
  readonly apiKeyVar: string | null;
  readonly server: TinkerFlavor;
}

/** One row: the tokens that go in, and by name what the loss is made of, one number for each of them. */
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
  /** 0 = none. SkyRL 0.3.0 takes no notice of it. */
  readonly grad_clip_norm: number;
}

export interface PassOutput {
  /** Of each datum, log softmax(logits) of its targets under the weights before the step. */
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
  /** log softmax(logits) of each token of the prompt, null for the first; absent where it was not asked for. */
  readonly promptLogprobs: readonly (number | null)[] | null;
}

export interface ServerModel {
  readonly name: string;
  readonly contextLength: number | null;
}

/**
 * What went wrong with a call, as whoever holds a model has to know it:
 *
 *     away      the server does not answer; nothing was done, or it does not matter how often it is
 *     lost      the model, its session or what was asked of it is gone, or nobody knows what became of it: begin anew
 *     failed    the server says that it failed, and that the request is not to blame
 *     refused   asking again will not help
 *     missing   what was named is not there: a checkpoint that expired or was deleted
 *     full      the server has no room for another model now
 */
export type TroubleKind = 'away' | 'lost' | 'failed' | 'refused' | 'missing' | 'full';
