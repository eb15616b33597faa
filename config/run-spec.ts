import { z } from 'zod';
import { CheckpointSpec } from './settings/checkpoints.ts';
import { RowsSpec, SftSpec } from './settings/data.ts';
import { EnvironmentSpec } from './settings/environments.ts';
import { EvalSpec } from './settings/evaluation.ts';
import { DifficultyFilterSpec, RolloutFiltersSpec } from './settings/filters.ts';
import { InferenceSpec } from './settings/inference.ts';
import {
  AdvantageSpec,
  LengthPenaltySpec,
  LossSpec,
  OverlongPenaltySpec,
  TeacherSpec,
  TurnCreditSpec,
} from './settings/learning.ts';
import { LoraSpec, OptimizerSpec, passes, ScheduleSpec } from './settings/optimizer.ts';
import { PromptBranchSpec } from './settings/prompt-branches.ts';
import {
  amount,
  BreakerSpec,
  BudgetSpec,
  QueueSpec,
  RetentionSpec,
  chance,
  ChatTemplateSpec,
  CostSpec,
  KlSpec,
  MlflowSpec,
  NotifySpec,
  NameSpec,
  OpenTelemetrySpec,
  pace,
  patience,
  prompts,
  rows,
  staleness,
  WandbSpec,
} from './settings/run.ts';
import { RequestedSpec } from './settings/requested.ts';
import { SamplingSpec, TemperatureScheduleSpec } from './settings/sampling.ts';
import { specFields } from './settings/setting.ts';
import { TrainerSpec } from './settings/trainer.ts';

/**
 * A normalized run: the result of every dialect's translation. Every value is set; later readers need no defaults. A
 * setting of the file has the same name in camel case.
 */
export const RunSpec = z.strictObject({
  schemaVersion: z.literal(1),
  name: NameSpec,
  /** A folder of Hugging Face files (absolute path), a preset of ours (`preset:NAME`), or the Hub's name of a model that is not here. */
  model: z.string().min(1),
  ...specFields(chance),
  ...specFields(amount),
  schedule: ScheduleSpec,
  optimizer: OptimizerSpec,
  loss: LossSpec,
  /** Loss of environments that are trained on the teacher alone; missing = `loss` applies to all. */
  distillation: LossSpec.optional(),
  advantage: AdvantageSpec,
  /** Missing = a rollout has one advantage, whatever its turns were rewarded. */
  turnCredit: TurnCreditSpec.optional(),
  /** Penalties on rewards for length, in advantages only (core/rl/learning/length-penalty.ts). */
  lengthPenalty: LengthPenaltySpec.nullable().default(null),
  overlongPenalty: OverlongPenaltySpec.nullable().default(null),
  ...specFields(passes),
  /** null = all weights are trained. The warm-up always trains all of them; its result is the adapters' base. */
  lora: LoraSpec.nullable().default(null),
  /** Sampling of training rollouts, and of evaluations without their own. */
  sampling: SamplingSpec,
  /** Missing = training rollouts have one temperature. */
  temperatureSchedule: TemperatureScheduleSpec.optional(),
  /** null = the model's own. */
  chatTemplate: ChatTemplateSpec.nullable().default(null),
  ...specFields(prompts),
  ...specFields(rows),
  rolloutFilters: RolloutFiltersSpec.prefault({}),
  /** Empty only if no step collects rollouts. */
  environments: z.array(EnvironmentSpec),
  eval: EvalSpec.nullable(),
  /** Teacher beside rewards or in their place; null = rewards only. */
  teacher: TeacherSpec.nullable().default(null),
  /** Missing = no prompt search branches. */
  gepa: PromptBranchSpec.optional(),
  filter: DifficultyFilterSpec,
  kl: KlSpec,
  ...specFields(staleness),
  ...specFields(pace),
  ...specFields(patience),
  breaker: BreakerSpec.prefault({}),
  checkpoints: CheckpointSpec,
  wandb: WandbSpec.nullable(),
  /** Missing = no MLflow. */
  mlflow: MlflowSpec.optional(),
  /** Missing = all rollouts are spans, if OpenTelemetry is used. */
  opentelemetry: OpenTelemetrySpec.optional(),
  /** Missing = tokens and hours are counted, and no money. */
  cost: CostSpec.optional(),
  /** Missing = nothing is limited. */
  budget: BudgetSpec.optional(),
  /** Missing = the run is of no pool. */
  queue: QueueSpec.optional(),
  /** Missing = as its team has it. */
  retention: RetentionSpec.optional(),
  /** Missing = no notices are sent. */
  notify: NotifySpec.optional(),
  sft: SftSpec.nullable(),
  /** Missing = steps are trained on rollouts. If set, all environments are for evaluations. */
  data: RowsSpec.optional(),
  trainer: TrainerSpec,
  inference: InferenceSpec,
  /**
   * Location of run folders: `file:` URI of a folder, or
   * `s3://bucket/prefix/?endpoint=…&region=…&path_style=true&sse=…&kms_key_id=…`.
   */
  store: z.strictObject({ uri: z.string().min(1) }),
  /** Missing = the file requests no GPUs and no vLLM besides `trainer` and `inference`. */
  requested: RequestedSpec.optional(),
});

export type RunSpec = z.infer<typeof RunSpec>;

export type { JsonValue } from '../core/json-value.ts';
export type { LossSettings } from '../core/settings/learning.ts';
export type { CheckpointSpec } from './settings/checkpoints.ts';
export { codeOf, type CodeRef } from './settings/code.ts';
export { CorrectionSpec } from './settings/correction.ts';
export type { EnvironmentSpec, PoolSpec, PythonEnvironmentSpec } from './settings/environments.ts';
export type { EvalSpec } from './settings/evaluation.ts';
export type { RolloutFilterSpec } from './settings/filters.ts';
export { InferenceSpec } from './settings/inference.ts';
export type { AdvantageSpec, TeacherSpec } from './settings/learning.ts';
export type { LoraSpec, OptimizerSpec } from './settings/optimizer.ts';
export type { PromptBranchSpec } from './settings/prompt-branches.ts';
export { ChatTemplateSpec, CostSpec, type MlflowSpec, NotifySpec, type WandbSpec } from './settings/run.ts';
export { SamplingSpec } from './settings/sampling.ts';
export type { EndpointsRef } from './settings/server-pool.ts';
export { DataRef } from './settings/sft.ts';
export type { QueueSpec } from './settings/queue.ts';
export { keptRows, type RowsSpec } from './settings/data.ts';
export type { ModuleSpec, TrainerSpec } from './settings/trainer.ts';
export type { TinkerInferenceSpec, TinkerTrainerSpec } from './models/tinker-spec.ts';
