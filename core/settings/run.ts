import type { InferenceKind } from '../kinds/inference.ts';
import type { TrainerKind } from '../kinds/trainers.ts';
import type { JsonValue } from '../json-value.ts';
import type { BudgetLimits } from './budgets.ts';
import type { AdvantageSettings, OptimizerSettings } from './learning.ts';
import type {
  DifficultyBounds,
  RolloutFilters,
  SamplingSettings,
  TemperatureSchedule,
  TrainedEnvironment,
  TrajectorySettings,
} from './rollouts.ts';

/** When a step trains on less than a whole batch. */
export type BatchFill = 'full' | 'half' | 'once';

/** All that the algorithm reads of a run; each function takes its part. A run file becomes it: RunSpec in config/run-spec.ts. */
export interface RunSettings extends TrajectorySettings {
  readonly trainer: {
    readonly kind: TrainerKind;
    /** Precision of the computation, if the engine can choose; float32 when missing. */
    readonly dtype?: string | undefined;
    readonly loadIn4bit?: boolean | undefined;
  };
  readonly inference: InferenceSettings;
  readonly maxSteps: number;
  readonly learningRate: number;
  readonly optimizer: OptimizerSettings;
  readonly advantage: AdvantageSettings;
  readonly maxMismatchKl: number | null;
  readonly sampling: Pick<SamplingSettings, 'temperature'>;
  readonly temperatureSchedule?: TemperatureSchedule | undefined;
  /** Tokens of a batch's rows, in place of rollouts. */
  readonly tokenBatchSize: number | null;
  readonly batchSize: number;
  readonly batchFill: BatchFill;
  readonly rolloutsPerExample: number;
  /** A group with fewer rewards is lost; null = each rollout has to have one. */
  readonly minGroupSize: number | null;
  readonly environments: readonly TrainedEnvironment[];
  readonly filter: DifficultyBounds;
  readonly rolloutFilters: RolloutFilters;
  /** Rollouts that were cut have the reward 0. */
  readonly zeroTruncated: boolean;
  readonly eval: { readonly interval: number | null } | null;
  readonly checkpoints: { readonly interval: number | null };
  readonly budget?: BudgetLimits | undefined;
  readonly queue?: { readonly priority: number } | undefined;
  readonly cost?: { readonly prompt: number | null; readonly completion: number | null } | undefined;
}

interface InferenceSettings {
  readonly kind: InferenceKind;
  readonly canaryThreshold?: number | undefined;
  readonly quantize?: string | undefined;
  readonly vllm?: { readonly args: Readonly<Record<string, JsonValue>> } | undefined;
}
