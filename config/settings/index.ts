import type { RunSpec } from '../run-spec.ts';
import { checkpoints, checkpointSpec, otherResume, resume } from './checkpoints.ts';
import { environmentFiles, environments, environmentSpecs, buffer, variableFiles } from './environments.ts';
import { evalSpec, evaluation } from './evaluation.ts';
import { data, rowsSpec, sft, sftSpec } from './data.ts';
import { difficultyFilter, filterSpec, postBatchFilters, preBatchFilters, rolloutFilterSpecs } from './filters.ts';
import { inference, inferenceSpec } from './inference.ts';
import { laterIn } from './later.ts';
import { lengthPenaltySpec, overlongPenaltySpec } from './length-penalty.ts';
import {
  advantageSpec,
  distillationSpec,
  kindOfRun,
  lossSpec,
  teacher,
  teacherSpec,
  turnCreditSpec,
} from './learning.ts';
import { accumulation, lora, loraSpec, optimizer, otherAlpha, otherWarmup, passes, scheduleSpec } from './optimizer.ts';
import { promptBranches, promptBranchSpec } from './prompt-branches.ts';
import {
  amount,
  breaker,
  chance,
  cost,
  klPenalty,
  klSpec,
  mlflow,
  naming,
  notify,
  opentelemetry,
  pace,
  patience,
  prompts,
  rows,
  staleness,
  store,
  storeUri,
  tokenizer,
  wandb,
} from './run.ts';
import { sampling, samplingSpec, temperatureScheduleSpec } from './sampling.ts';
import { inSpec, optionalTable, settingsIn, table, tableType, type WrittenIn } from './setting.ts';
import { trainer, trainerSpec } from './trainer.ts';

/**
 * Every setting of a run file in our own words, which all dialects are translated into: Hosted Training's TOML, and the tables
 * Ratchet adds to it. What a section is made of stands in its file.
 */
export const settings = {
  ...naming,
  ...kindOfRun,
  teacher,
  ...amount,
  ...chance,
  ...pace,
  ...staleness,
  ...patience,
  ...otherWarmup,
  ...accumulation,
  ...rows,
  ...prompts,
  pre_batch_filters: preBatchFilters,
  post_batch_filters: postBatchFilters,
  tokenizer,
  ...otherAlpha,
  lora,
  ...environmentFiles,
  env: environments,
  ...variableFiles,
  sampling,
  eval: evaluation,
  gepa: promptBranches,
  difficulty_filter: difficultyFilter,
  breaker: table(breaker),
  buffer,
  kl_penalty: klPenalty,
  checkpoints,
  resume,
  ckpt: otherResume,
  val: optionalTable(laterIn('val')),
  wandb: optionalTable(wandb),
  mlflow: optionalTable(mlflow),
  opentelemetry: optionalTable(opentelemetry),
  notify: optionalTable(notify),
  cost: optionalTable(cost),
  trainer,
  inference,
  store,
  sft,
  data,
  ...laterIn(''),
};

export { resumeStepOf } from './checkpoints.ts';
export const RatchetConfig = tableType(settings);
/** A run file whose fields are right, in our own words, its defaults filled in. */
export type RatchetConfig = WrittenIn<typeof settings>;

/** By path, as in a dialect's table of fields. */
export const settingsByPath = new Map(settingsIn(settings));

/** The one meaning of a config whose settings and relations are right. */
export function toRunSpec(config: RatchetConfig, name: string): Omit<RunSpec, 'later'> {
  const gepa = promptBranchSpec(config);
  return {
    schemaVersion: 1,
    name,
    model: config.model,
    ...inSpec({ ...amount, ...chance, ...pace, ...staleness, ...patience, ...rows, ...prompts }, config),
    schedule: scheduleSpec(config),
    optimizer: inSpec(optimizer, config.trainer),
    loss: lossSpec(config),
    ...distillationSpec(config),
    advantage: advantageSpec(config),
    ...turnCreditSpec(config),
    lengthPenalty: lengthPenaltySpec(config.trainer.length_penalty),
    overlongPenalty: overlongPenaltySpec(config.trainer.overlong_penalty),
    ...inSpec(passes, config.trainer),
    lora: loraSpec(config),
    sampling: samplingSpec(config.sampling),
    ...temperatureScheduleSpec(config),
    chatTemplate:
      config.tokenizer.chat_template === undefined ? null : { path: config.tokenizer.chat_template, sha256: null },
    rolloutFilters: rolloutFilterSpecs(config),
    environments: environmentSpecs(config),
    teacher: teacherSpec(config),
    eval: evalSpec(config),
    ...(gepa && { gepa }),
    filter: filterSpec(config),
    kl: klSpec(config),
    breaker: inSpec(breaker, config.breaker),
    checkpoints: checkpointSpec(config),
    wandb: config.wandb === undefined ? null : inSpec(wandb, config.wandb),
    ...(config.mlflow && { mlflow: inSpec(mlflow, config.mlflow) }),
    ...(config.opentelemetry && { opentelemetry: inSpec(opentelemetry, config.opentelemetry) }),
    ...(config.notify && { notify: inSpec(notify, config.notify) }),
    ...(config.cost && { cost: inSpec(cost, config.cost) }),
    sft: sftSpec(config),
    ...rowsSpec(config),
    trainer: trainerSpec(config),
    inference: inferenceSpec(config),
    store: { uri: storeUri(config) },
  };
}
