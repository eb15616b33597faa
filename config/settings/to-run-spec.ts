import type { RunSpec } from '../run-spec.ts';
import { checkpointSpec } from './checkpoints.ts';
import { environmentSpecs } from './environments.ts';
import { evalSpec } from './evaluation.ts';
import { rowsSpec, sftSpec } from './data.ts';
import { filterSpec, rolloutFilterSpecs } from './filters.ts';
import { inferenceSpec } from './inference.ts';
import { lengthPenaltySpec, overlongPenaltySpec } from './length-penalty.ts';
import { advantageSpec, distillationSpec, lossSpec, teacherSpec, turnCreditSpec } from './learning.ts';
import { loraSpec, optimizer, passes, scheduleSpec } from './optimizer.ts';
import { promptBranchSpec } from './prompt-branches.ts';
import {
  amount,
  breaker,
  budgetSpec,
  chance,
  cost,
  klSpec,
  mlflow,
  notify,
  opentelemetry,
  pace,
  patience,
  pricedModelsSpec,
  prompts,
  queueSpec,
  retentionSpec,
  rows,
  staleness,
  storeUri,
  wandb,
} from './run.ts';
import { requestedSpec } from './requested.ts';
import { samplingSpec, temperatureScheduleSpec } from './sampling.ts';
import { inSpec } from './setting.ts';
import { trainerSpec } from './trainer.ts';
import type { RatchetConfig } from './index.ts';

/** The one meaning of a config whose settings and relations are right. */
export function toRunSpec(config: RatchetConfig, name: string): RunSpec {
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
    ...(config.cost && { cost: { ...inSpec(cost, config.cost), ...pricedModelsSpec(config.cost.models) } }),
    ...budgetSpec(config.budget),
    ...queueSpec(config.queue),
    ...retentionSpec(config.retention),
    sft: sftSpec(config),
    ...rowsSpec(config),
    trainer: trainerSpec(config),
    inference: inferenceSpec(config),
    store: { uri: storeUri(config) },
    ...requestedSpec(config),
  };
}
