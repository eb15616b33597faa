import { settingsByPath } from './settings/index.ts';

/** Parts of a run's spec with another place in run files. The longest match counts. */
const placesInFile: Readonly<Record<string, string>> = {
  optimizer: 'trainer',
  'optimizer.type': 'trainer.optimizer',
  schedule: 'trainer',
  'schedule.type': 'trainer.schedule',
  loss: 'trainer.loss',
  'loss.advantageTau': 'trainer.loss.adv_tau',
  'loss.maxTokens': 'trainer.loss.dr_grpo_tokens',
  'loss.correction': 'trainer.correction',
  distillation: 'trainer.loss',
  advantage: 'trainer.advantage',
  turnCredit: 'trainer.advantage',
  lengthPenalty: 'trainer.length_penalty',
  overlongPenalty: 'trainer.overlong_penalty',
  numIterations: 'trainer.num_iterations',
  numMiniBatches: 'trainer.num_mini_batches',
  microBatchSize: 'trainer.micro_batch_size',
  temperatureSchedule: 'sampling.temp_scheduler',
  chatTemplate: 'tokenizer.chat_template',
  'rolloutFilters.pre': 'pre_batch_filters',
  'rolloutFilters.post': 'post_batch_filters',
  environments: 'env',
  'eval.environments': 'eval.env',
  filter: 'difficulty_filter',
  'filter.keepsEqual': 'difficulty_filter.keep_equal',
  'filter.onlineDifficultyFiltering': 'buffer.online_difficulty_filtering',
  kl: 'kl_penalty',
  'inference.vllm': 'inference',
  'requested.trainerGpus': 'trainer.gpus',
  'requested.inferenceGpus': 'inference.gpus',
  'requested.vllm': 'inference.vllm',
  'requested.torch': 'trainer',
  'inference.endpoints': 'inference.endpoint_id',
  // Names of overrides by `ratchet set`.
  maxGradNorm: 'trainer.max_grad_norm',
  evalInterval: 'eval.interval',
  checkpointInterval: 'checkpoints.interval',
};

/** Keys below these are the user's own. */
const ownKeys = ['args', 'options', 'headers', 'chatTemplateKwargs', 'extraBody'];

/** A run file's name for a part of a run's spec: `learning_rate` of `learningRate`, `env[0].args.min_length`. */
export function nameInFile(path: string): string {
  const parts = path.split('.');
  const fits = parts
    .map((_, i) => i + 1)
    .findLast((count) => Object.hasOwn(placesInFile, parts.slice(0, count).join('.')));
  const place = fits === undefined ? '' : placesInFile[parts.slice(0, fits).join('.')]!;
  let name = place;
  let isOwn = false;
  for (const part of parts.slice(fits ?? 0)) {
    if (/^\d+$/.test(part) && name !== '') name += `[${part}]`;
    else name += `${name === '' ? '' : '.'}${isOwn ? part : keyOf(name, part)}`;
    isOwn ||= ownKeys.includes(part);
  }
  return name;
}

/** A setting may have another name in the spec than its own in camel case. */
function keyOf(table: string, part: string): string {
  const start = table === '' ? '' : `${table.replaceAll(/\[\d+\]/g, '[]')}.`;
  const plain = snakeCase(part);
  if (settingsByPath.has(start + plain)) return plain;
  for (const [path, { as }] of settingsByPath)
    if (as === part && path.startsWith(start) && !path.slice(start.length).includes('.'))
      return path.slice(start.length);
  return plain;
}

function snakeCase(key: string): string {
  return key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
