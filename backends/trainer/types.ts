import type { PackedRow, TokenScores, TrainBatch, TrainSample } from '../../core/rl/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { LoraSpec, OptimizerSpec } from '../../config/run-spec.ts';

/** What is trained from a folder of weights. */
export interface TrainedPart {
  /** Adapters on the weights, which stay; null = all weights. */
  readonly lora: LoraSpec | null;
  /** Of new adapters. */
  readonly seed: number;
}

/** Of a supervised step. */
export interface SupervisedRow extends TrainSample {
  /** What each token weighs; absent where those that count weigh 1. */
  readonly tokenWeights?: readonly number[];
}

export interface SftOutcome {
  /** False = refused: loss or gradient was not finite, nothing was changed. */
  readonly applied: boolean;
  /** Why it was refused. */
  readonly reason?: string;
  readonly metrics: Readonly<Record<string, number>>;
}

export interface TrainOutcome extends SftOutcome {
  /** sha256 of the weights after the step, hex. */
  readonly digest: string;
  /** What its first pass computed of each token. Absent where it was not asked for, was refused, or the trainer does not tell. */
  readonly scores?: TokenScores;
}

/**
 * The trainer port. It holds one policy with its optimizer; what it is told to do, in what order, decides its bits.
 * It knows files and batches, not runs.
 */
export interface Trainer {
  /**
   * Loads a folder of Hugging Face files, or of a PEFT adapter and through it its base, and forgets everything else, the
   * optimizer's state included. A new adapter changes nothing, so its digest is that of the base.
   */
  open(folder: string, part: TrainedPart): Promise<{ digest: string }>;
  /**
   * Makes the first version where its weights are elsewhere, as a folder that {@link open} takes; `files` are the model's texts
   * (tokenizer, configs). Absent where the model's own folder is the first version. Such a trainer has adapters only, in the
   * warm-up as well.
   */
  makeBase?(
    folder: string,
    options: TrainedPart & { readonly files: Readonly<Record<string, string>> },
  ): Promise<{ digest: string }>;
  /** One application of the batch. `referenceFolder` holds the reference policy's files. `tellsTokens` changes no bit of it. */
  trainStep(input: {
    readonly plan: StepPlan;
    readonly batch: TrainBatch;
    readonly referenceFolder: string;
    readonly tellsTokens?: boolean;
  }): Promise<TrainOutcome>;
  /**
   * One supervised step: −Σ log π of the tokens that count, by how many these are. With `normalizer` −Σ w log π by that, w the
   * `tokenWeights` of the rows: a trainer that does not know it refuses it.
   */
  sftStep(input: {
    readonly samples: readonly SupervisedRow[];
    readonly normalizer?: number;
    readonly learningRate: number;
    readonly optimizer: OptimizerSpec;
  }): Promise<SftOutcome>;
  /** sha256 of the weights, hex. */
  digest(): Promise<string>;
  /**
   * Writes the policy as Hugging Face files; where adapters are trained as PEFT's, which name `base`: a path from the
   * folder that the files will lie in.
   */
  exportTo(folder: string, options: { readonly base: string }): Promise<void>;
  /**
   * log softmax(logits / temperature) of every token under the weights it holds, of those whose mask is 0 whatever it likes. The
   * canary is made of them, and what a server does not tell of the policy that sampled. Absent where it cannot say.
   */
  logprobs?(samples: readonly PackedRow[], temperature: number): Promise<readonly Float32Array[]>;
  /** What its bits depend on besides its inputs; equal ones promise equal bits. Absent where nothing is promised. */
  fingerprint?(): Promise<string>;
  /** The optimizer's state as bytes; `restoreOptimizer` takes them back, null = a fresh optimizer. */
  saveOptimizer(): Promise<Uint8Array>;
  restoreOptimizer(state: Uint8Array | null): Promise<void>;
  /** What it waits for elsewhere at the moment, in words, for `ratchet status`; null = nothing. */
  waitsFor?(): string | null;
  close(): Promise<void>;
}
