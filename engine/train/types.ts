import type { MaskedSample, Rows, TokenScores, TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings, OptimizerSettings } from '../../core/settings/learning.ts';

export interface SftOptions {
  readonly learningRate: number;
  readonly optimizer: OptimizerSettings;
  /** Padded positions of one micro-batch at most; bounds memory, not the gradient. */
  readonly microBatchPositions?: number;
  /** Most rows of one micro-batch. */
  readonly microBatchRows?: number;
  /** Keys the dropout masks of adapters, with the pass, the micro-batch and the module; 0 when left out. */
  readonly dropoutSeed?: number;
}

export interface SupervisedOptions extends SftOptions {
  /** Rows have `tokenWeights`, and their sum of weight · −log π is divided by this; else a token that counts weighs 1, and it is their number. */
  readonly normalizer?: number;
}

export interface SupervisedSample extends MaskedSample {
  readonly tokenWeights?: readonly number[];
}

/** Inputs of a policy loss beside the batch and its log probabilities. */
export interface PolicyLossOptions {
  readonly loss: LossSettings;
  /** Settings for rows whose objective is ref_kl. */
  readonly distillation?: LossSettings;
  /** Sampling temperature: ℓ = log softmax(logits / temperature). */
  readonly temperature: number;
  /** Coefficient of the KL term; needs reference logprobs unless 0. */
  readonly klBeta: number;
  /** Log probabilities under the reference policy at the same temperature, aligned with each sample's tokens. */
  readonly referenceLogprobs?: readonly ArrayLike<number>[];
}

export interface TrainOptions extends SftOptions, PolicyLossOptions {
  /** Passes over the batch, each an optimizer step with the same behaviour logprobs; 1 when left out. */
  readonly iterations?: number;
  /** Parts of the batch that each pass makes a step of, one after the other; 1 when left out. */
  readonly miniBatches?: number;
  /** Report the first pass's scores of each token. */
  readonly tellsTokens?: boolean;
}

export interface SftMetrics {
  readonly loss: number;
  /** Mean over tokens that count of −Σ p log p, in nats. */
  readonly entropy: number;
  /** Global L2 norm before clipping, of the last pass. Everything else is the mean over passes. */
  readonly gradNorm: number;
  /** Sum of the mask. */
  readonly tokenCount: number;
}

/** Means are over the tokens that the policy sampled and that count; `tokenCount` has those that it observed as well. */
export interface TrainMetrics extends SftMetrics {
  /** k3 estimate between the sampler and the trainer at the same weights or a few versions apart: mean of ρ − 1 − log ρ. */
  readonly mismatchKl: number;
  /**
   * Share of tokens affected by clipping: in cispo those whose ratio is above clipHigh, in grpo those whose ratio is
   * above it at a positive advantage or below clipLow at a negative one, in importance_sampling those outside the mask.
   */
  readonly clipFraction: number;
  readonly clipFractionLow: number;
  readonly clipFractionHigh: number;
  readonly ratioMean: number;
  /** Largest |ℓ − behaviour logprob|. */
  readonly maxLogprobDifference: number;
  /** k3 estimate against the reference; null when no reference logprobs were given. */
  readonly klDivergence: number | null;
  /** Mean −ℓ of the environments' tokens, by their weights; absent when none are trained on. */
  readonly nll?: number;
  /**
   * Share of the tokens trained on a teacher alone that its trust region excludes; absent if there are none beside
   * others.
   */
  readonly refKlMasked?: number;
}

/** A step is taken whole or not at all. A refused one leaves weights and optimizer as they were. */
export type StepResult<Metrics> =
  | { readonly applied: true; readonly metrics: Metrics }
  | { readonly applied: false; readonly reason: string; readonly metrics: Metrics };

/** `scores` are present if they were requested and the step was applied. */
export type TrainResult = StepResult<TrainMetrics> & { readonly scores?: TokenScores };

export interface LogprobOptions {
  readonly temperature: number;
  /** Folder whose weights score; the trainer's own by default. Its contents must not change. */
  readonly weights?: string;
}

export interface ExportOptions {
  /** Path of the base in an adapter's config, absolute or relative to the adapter's folder. */
  readonly base?: string;
}

/**
 * A trainer, in this process or another. Rows outside of memory are read a micro-batch at a time, again in each pass.
 */
export interface Optimizer {
  sftStep(rows: Rows<SupervisedSample>, options: SupervisedOptions): Promise<StepResult<SftMetrics>>;
  trainStep(rows: Rows<TrainSample>, options: TrainOptions): Promise<TrainResult>;
  /** Log probability of every token that counts; 0 elsewhere. Aligned with each sample's tokens. */
  forwardLogprobs(rows: Rows<MaskedSample>, options: LogprobOptions): Promise<Float32Array[]>;
  /** SHA-256 of the weights: the digest of the policy version. */
  digest(): Promise<string>;
  /**
   * Writes a Hugging Face folder, or a PEFT adapter's if an adapter is trained; its weights appear whole or not at all.
   * Returns the digest of the policy when loaded from there.
   */
  exportWeights(folder: string, options?: ExportOptions): Promise<string>;
  /** Replaces the weights by those of a folder of the same architecture. Returns their digest. */
  loadWeights(folder: string): Promise<string>;
  saveState(): Promise<Uint8Array>;
  restoreState(state: Uint8Array): Promise<void>;
  resetMoments(): Promise<void>;
  close(): Promise<void>;
}
