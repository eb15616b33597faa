import { budget } from './budgets.ts';
import { checkpoints, otherResume, resume, retentionTable } from './checkpoints.ts';
import { environmentFiles, environments, buffer, variableFiles } from './environments.ts';
import { evaluation } from './evaluation.ts';
import { data, sft } from './data.ts';
import { difficultyFilter, postBatchFilters, preBatchFilters } from './filters.ts';
import { inference } from './inference.ts';
import { kindOfRun, teacher } from './learning.ts';
import { lora, otherAlpha, otherWarmup } from './optimizer.ts';
import { promptBranches } from './prompt-branches.ts';
import { queueTable } from './queue.ts';
import {
  amount,
  breaker,
  chance,
  costTable,
  klPenalty,
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
  tokenizer,
  wandb,
} from './run.ts';
import { sampling } from './sampling.ts';
import { optionalTable, settingsIn, table, tableType, type WrittenIn } from './setting.ts';
import { trainer } from './trainer.ts';

/**
 * Every setting of a run file in our own words, which all dialects are translated into: Hosted Training's TOML, and
 * Ratchet's own tables. Each section has a file.
 */
const settings = {
  ...naming,
  ...kindOfRun,
  teacher,
  ...amount,
  ...chance,
  ...pace,
  ...staleness,
  ...patience,
  ...otherWarmup,
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
  wandb: optionalTable(wandb),
  mlflow: optionalTable(mlflow),
  opentelemetry: optionalTable(opentelemetry),
  notify: optionalTable(notify),
  cost: optionalTable(costTable),
  budget,
  queue: queueTable,
  retention: retentionTable,
  trainer,
  inference,
  store,
  sft,
  data,
};

export { resumeStepOf } from './checkpoints.ts';
export const RatchetConfig = tableType(settings);
/** A valid run file in our own words, with defaults filled in. */
export type RatchetConfig = WrittenIn<typeof settings>;

/** Keyed by path, like a dialect's table of fields. */
export const settingsByPath = new Map(settingsIn(settings));
