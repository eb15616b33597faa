import { z } from 'zod';
import { atLeastZero, choice, countOrAll, flag, freeTable, positive, text, whole } from '../values.ts';

/**
 * Fields whose feature is still to come. They are read, checked and kept in the run's spec (`later`), and `ratchet check`
 * lists those that a file has. By path, as in a dialect's table of fields.
 */
export interface LaterField {
  readonly schema: z.ZodType;
  /** What will honour it. */
  readonly feature: string;
  /** What it means, for the documentation. */
  readonly meaning: string;
}

const gpus = 'trainers and servers on GPUs';
const verifiers = 'verifiers environments';
const templates = 'switches of chat templates';
const validation = 'validation batches';
const filters = 'filters of rollouts';

/** Of an environment, of [[env]] and [[eval.env]] alike. */
const environmentFields: Readonly<Record<string, LaterField>> = {
  harness: { schema: freeTable(), feature: verifiers, meaning: 'what plays its tasks (verifiers v1)' },
  max_input_tokens: { schema: whole(1), feature: verifiers, meaning: 'limit of a rollout' },
  max_output_tokens: { schema: whole(1), feature: verifiers, meaning: 'limit of a rollout' },
  max_retries: {
    schema: whole(0),
    feature: verifiers,
    meaning: 'how often a rollout that failed is played again',
  },
  max_total_tokens: { schema: whole(1), feature: verifiers, meaning: 'limit of a rollout' },
  max_turns: { schema: whole(1), feature: verifiers, meaning: 'limit of a rollout' },
  multiplex: { schema: whole(1), feature: verifiers, meaning: 'rollouts that a worker of it plays at once' },
  pool: { schema: freeTable(), feature: verifiers, meaning: 'its workers' },
  retries: { schema: freeTable(), feature: verifiers, meaning: 'when a rollout that failed is played again' },
  sampling: { schema: freeTable(), feature: verifiers, meaning: 'lies over `[sampling]`' },
  timeout: { schema: freeTable(), feature: verifiers, meaning: 'limits of a rollout in seconds' },
};

/** Hosted Training, vf-rl and GRPOConfig. */
const hostedFields: Readonly<Record<string, LaterField>> = {
  mask_truncated_completions: {
    schema: flag(),
    feature: filters,
    meaning: 'whether rollouts that were cut at their limit carry no loss',
  },
  max_concurrent: { schema: whole(1), feature: verifiers, meaning: 'rollouts that are played at once, at most' },
  max_prompt_len: { schema: whole(1), feature: gpus, meaning: 'tokens of the longest prompt that is trained on' },
  zero_truncated_completions: {
    schema: flag(),
    feature: filters,
    meaning: 'whether rollouts that were cut at their limit have no reward',
  },
  post_batch_filters: filterList('kept out of a batch that is full'),
  pre_batch_filters: filterList('dropped before they fill a batch'),
  'env[].group_size': { schema: whole(1), feature: verifiers, meaning: 'rollouts of one of its examples' },
  ...under('env[]', environmentFields),
  ...under('eval.env[]', environmentFields),
  'eval.env[].ratio': { schema: positive(), feature: verifiers, meaning: 'its share' },
  'eval.sampling.enable_thinking': { schema: flag(), feature: templates, meaning: 'whether the model thinks aloud' },
  'eval.sampling.extra_body': { schema: freeTable(), feature: gpus, meaning: 'further fields of a request' },
  'eval.sampling.reasoning_effort': {
    schema: choice('low', 'medium', 'high'),
    feature: templates,
    meaning: 'how long the model thinks',
  },
  'inference.gpus': { schema: whole(0), feature: gpus, meaning: 'GPUs that sample' },
  'inference.vllm': { schema: freeTable(), feature: gpus, meaning: 'arguments of vLLM’s server' },
  'kl_penalty.ref_mixup_alpha': {
    schema: atLeastZero(),
    feature: 'references that are mixed',
    meaning: 'share of the policy in the renewed reference; until then it is renewed as a whole, which is 1',
  },
  'sampling.enable_thinking': { schema: flag(), feature: templates, meaning: 'whether the model thinks aloud' },
  'sampling.extra_body': { schema: freeTable(), feature: gpus, meaning: 'further fields of a request' },
  'sampling.reasoning_effort': {
    schema: choice('low', 'medium', 'high'),
    feature: templates,
    meaning: 'how long the model thinks',
  },
  'sampling.temp_scheduler.end_temperature': schedule(positive(), 'at its end'),
  'sampling.temp_scheduler.start_temperature': schedule(positive(), 'at its beginning'),
  'sampling.temp_scheduler.total_steps': schedule(whole(1), 'how many steps it takes; else all'),
  'sampling.temp_scheduler.type': schedule(choice('linear', 'cosine'), 'its course'),
  'trainer.bf16': {
    schema: flag(),
    feature: gpus,
    meaning: 'whether it computes in bfloat16; the embedded engine in float32',
  },
  'trainer.gpus': { schema: whole(1), feature: gpus, meaning: 'GPUs that train' },
  'trainer.gradient_checkpointing': {
    schema: flag(),
    feature: gpus,
    meaning: 'whether activations are computed again instead of kept',
  },
  'trainer.use_liger': { schema: flag(), feature: gpus, meaning: 'whether it computes with Liger’s kernels' },
  'val.interval': { schema: whole(1), feature: validation, meaning: 'steps between them' },
  'val.num_examples': { schema: countOrAll('examples'), feature: validation, meaning: 'examples of one' },
  'val.rollouts_per_example': { schema: whole(1), feature: validation, meaning: 'rollouts of each' },
};

function under(table: string, fields: Readonly<Record<string, LaterField>>): Record<string, LaterField> {
  return Object.fromEntries(Object.entries(fields).map(([key, field]) => [`${table}.${key}`, field]));
}

function filterList(meaning: string): LaterField {
  return {
    schema: z
      .array(z.looseObject({ type: text(), enforce: flag().optional() }))
      .meta({ expected: 'a list of tables with a type' }),
    feature: filters,
    meaning: `rollouts that are ${meaning}`,
  };
}

function schedule(schema: z.ZodType, meaning: string): LaterField {
  return { schema, feature: 'temperature schedules', meaning: `of a temperature that changes: ${meaning}` };
}

export const laterFields: Readonly<Record<string, LaterField>> = {
  seq_len: {
    schema: whole(1),
    feature: gpus,
    meaning: 'tokens of the longest row that is trained on',
  },
  ...hostedFields,
};

/** The fields of one table, as a shape for its schema: all of them may be left out. */
export function laterShape(table: string): Record<string, z.ZodOptional> {
  const prefix = table === '' ? '' : `${table}.`;
  return Object.fromEntries(
    Object.entries(laterFields)
      .filter(([path]) => path.startsWith(prefix) && !path.slice(prefix.length).includes('.'))
      .map(([path, { schema }]) => [path.slice(prefix.length), schema.optional()]),
  );
}
