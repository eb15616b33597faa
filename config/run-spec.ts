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
import { SamplingSpec, TemperatureScheduleSpec } from './settings/sampling.ts';
import { specFields } from './settings/setting.ts';
import { TrainerSpec } from './settings/trainer.ts';
import { args } from './values.ts';

/**
 * A run, normalized: what every dialect is translated into. Everything has its value here, no defaults are left to
 * later readers. A setting that the file's table has as well is a field of the same name in camel case.
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
  /** Of environments that are learned from the teacher alone; missing = `loss` is that of all. */
  distillation: LossSpec.optional(),
  advantage: AdvantageSpec,
  /** Missing = a rollout has one advantage, whatever its turns were rewarded. */
  turnCredit: TurnCreditSpec.optional(),
  /** What lengths take from rewards, for advantages alone (core/rl/length-penalty.ts). */
  lengthPenalty: LengthPenaltySpec.nullable().default(null),
  overlongPenalty: OverlongPenaltySpec.nullable().default(null),
  ...specFields(passes),
  /** null = all weights are trained. The warm-up always trains all of them: what it ends with is the adapters' base. */
  lora: LoraSpec.nullable().default(null),
  /** Of training rollouts, and of evaluations where they have none of their own. */
  sampling: SamplingSpec,
  /** Missing = training rollouts have one temperature. */
  temperatureSchedule: TemperatureScheduleSpec.optional(),
  /** null = the model's own. */
  chatTemplate: ChatTemplateSpec.nullable().default(null),
  ...specFields(prompts),
  ...specFields(rows),
  rolloutFilters: RolloutFiltersSpec.prefault({}),
  /** None only where there is no step to collect rollouts for. */
  environments: z.array(EnvironmentSpec),
  eval: EvalSpec.nullable(),
  /** Who the policy learns from beside its rewards, or in their place; null = from its rewards alone. */
  teacher: TeacherSpec.nullable().default(null),
  /** Missing = nothing branches off. */
  gepa: PromptBranchSpec.optional(),
  filter: DifficultyFilterSpec,
  kl: KlSpec,
  ...specFields(staleness),
  ...specFields(pace),
  ...specFields(patience),
  breaker: BreakerSpec.prefault({}),
  checkpoints: CheckpointSpec,
  wandb: WandbSpec.nullable(),
  /** Missing = MLflow is not fed. */
  mlflow: MlflowSpec.optional(),
  /** Missing = all rollouts are spans, where OpenTelemetry is fed. */
  opentelemetry: OpenTelemetrySpec.optional(),
  /** Missing = tokens and hours are counted, and no money. */
  cost: CostSpec.optional(),
  /** Missing = notices are sent to nobody. */
  notify: NotifySpec.optional(),
  sft: SftSpec.nullable(),
  /** Missing = steps are trained on rollouts. With it there are no environments but those that are evaluated. */
  data: RowsSpec.optional(),
  trainer: TrainerSpec,
  inference: InferenceSpec,
  /** Where the run folders lie: `file:` URI of a folder, or `s3://bucket/prefix/?endpoint=…&region=…&path_style=true&sse=…&kms_key_id=…`. */
  store: z.strictObject({ uri: z.string().min(1) }),
  /** What the config asks for and no part of Ratchet does yet, by path in our own words: `trainer.gpus`, `env[0].sampling.extra_body`. */
  later: args().default({}),
});

export type RunSpec = z.infer<typeof RunSpec>;
/** A LossSpec whose fields with a default may be left out. */
export type LossSettings = z.input<typeof LossSpec>;

export type { JsonValue } from './values.ts';
export type { CheckpointSpec } from './settings/checkpoints.ts';
export type { CodeRef } from './settings/code.ts';
export { CorrectionSpec } from './settings/correction.ts';
export type { EnvironmentSpec, PoolSpec, PythonEnvironmentSpec } from './settings/environments.ts';
export type { EvalSpec } from './settings/evaluation.ts';
export type { DifficultyFilterSpec, RolloutFilterSpec } from './settings/filters.ts';
export { InferenceSpec } from './settings/inference.ts';
export type { AdvantageSpec, LossSpec, TeacherSpec } from './settings/learning.ts';
export type { LoraSpec, OptimizerSpec, ScheduleSpec } from './settings/optimizer.ts';
export type { PromptBranchSpec } from './settings/prompt-branches.ts';
export {
  type BreakerSpec,
  ChatTemplateSpec,
  CostSpec,
  type KlSpec,
  type MlflowSpec,
  NotifySpec,
  type WandbSpec,
} from './settings/run.ts';
export { SamplingSpec, type TemperatureScheduleSpec } from './settings/sampling.ts';
export type { EndpointsRef } from './settings/server-pool.ts';
export { DataRef, type SftSpec } from './settings/sft.ts';
export { keptRows, type RowsSpec } from './settings/data.ts';
export type { ModuleSpec, TrainerSpec } from './settings/trainer.ts';
export type { TinkerInferenceSpec, TinkerTrainerSpec } from './tinker-spec.ts';
