import type { TrainBatch, TrainSample } from '../../core/rl/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { OptimizerSpec } from '../../core/spec/run-spec.ts';

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
}

/**
 * The trainer port. It holds one policy with its optimizer; what it is told to do, in what order, decides its bits.
 * It knows files and batches, not runs.
 */
export interface Trainer {
  /** Loads a folder of Hugging Face files and forgets everything else, the optimizer's state included. */
  open(folder: string): Promise<{ digest: string }>;
  /** One application of the batch. `referenceFolder` holds the reference policy's files. */
  trainStep(input: {
    readonly plan: StepPlan;
    readonly batch: TrainBatch;
    readonly referenceFolder: string;
  }): Promise<TrainOutcome>;
  /** One supervised step. */
  sftStep(input: {
    readonly samples: readonly TrainSample[];
    readonly learningRate: number;
    readonly optimizer: OptimizerSpec;
  }): Promise<SftOutcome>;
  /** sha256 of the weights, hex. */
  digest(): Promise<string>;
  /** Writes the policy as Hugging Face files. */
  exportTo(folder: string): Promise<void>;
  /** The optimizer's state as bytes; `restoreOptimizer` takes them back, null = a fresh optimizer. */
  saveOptimizer(): Promise<Uint8Array>;
  restoreOptimizer(state: Uint8Array | null): Promise<void>;
  close(): Promise<void>;
}
