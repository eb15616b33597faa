import type { PackedRow, TokenScores, TrainBatch, TrainSample } from '../../core/rl/learning/batch.ts';
import type { OptimizerState, StepPlan } from '../../core/rl/run-state.ts';
import type { LoraSpec, OptimizerSpec } from '../../config/run-spec.ts';

/** The trained part of a folder of weights. */
export interface TrainedPart {
  /** Adapters on the weights, which stay; null = all weights. */
  readonly lora: LoraSpec | null;
  /** Seed of new adapters. */
  readonly seed: number;
}

export interface SupervisedRow extends TrainSample {
  /** Weight of each token; absent if those that count weigh 1. */
  readonly tokenWeights?: readonly number[];
}

export interface SftOutcome {
  /** False = refused: loss or gradient was not finite, nothing was changed. */
  readonly applied: boolean;
  readonly reason?: string;
  readonly metrics: Readonly<Record<string, number>>;
}

export interface TrainOutcome extends SftOutcome {
  /** sha256 of the weights after the step, hex. */
  readonly digest: string;
  /** Token scores of its first pass. Absent unless requested and applied, or if the trainer reports none. */
  readonly scores?: TokenScores;
}

/**
 * The trainer port. It holds one policy with its optimizer; the calls and their order decide its bits. It knows files
 * and batches, not runs. `State`: the form of its optimizer's state.
 */
export interface Trainer<State extends OptimizerState = Uint8Array> {
  /**
   * Loads a folder of Hugging Face files, or of a PEFT adapter and through it its base, and forgets everything else, the
   * optimizer's state included. A new adapter changes nothing, so its digest is that of the base. The run may remove the
   * folder afterwards; that of an adapter's base stays.
   */
  open(folder: string, part: TrainedPart): Promise<{ digest: string }>;
  /**
   * Makes the first version if its weights are elsewhere, as a folder for {@link open}; `files` are the model's texts
   * (tokenizer, configs). Absent if the model's own folder is the first version. The warm-up of such a trainer trains
   * what the run trains.
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
   * One supervised step: −Σ log π of the tokens that count, by how many these are. If there is a `normalizer`, −Σ w log π by that, w the
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
   * Writes the policy as Hugging Face files; adapters are written as PEFT's, which name `base`: a path from the folder
   * that the files will be in.
   */
  exportTo(folder: string, options: { readonly base: string }): Promise<void>;
  /**
   * log softmax(logits / temperature) of every token under its weights; arbitrary where the mask is 0. Used for the
   * canary, and for log probabilities that a server did not report. Absent if it cannot compute them.
   */
  logprobs?(samples: readonly PackedRow[], temperature: number): Promise<readonly Float32Array[]>;
  /**
   * Fingerprint of everything that its bits depend on besides its inputs; equal ones promise equal bits. Absent without
   * such a promise.
   */
  fingerprint?(): Promise<string>;
  /**
   * The optimizer's state: bytes, or files in `folder`, which is empty, with a list of them that comes last. `restoreOptimizer` takes it
   * back, null = a fresh optimizer; it throws `CheckpointDamaged` for a folder that is not whole.
   */
  saveOptimizer(folder: string): Promise<State>;
  restoreOptimizer(state: State | null): Promise<void>;
  /** The remote work that it waits for now, in words, for `ratchet status`; null = none. */
  waitsFor?(): string | null;
  /** No run has the GPU worker now: gives back what others may want meanwhile. Its version stays, and the next call goes on from it. */
  rest?(): void;
  close(): Promise<void>;
}

/** A trainer of any kind. */
export type AnyTrainer = Trainer<OptimizerState>;
