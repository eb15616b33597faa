import { z } from 'zod';
import { nearestName } from '../../core/suggest.ts';
import { describe } from '../reporter.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import { args, atLeastZero, choice, environmentId, flag, positive, text, whole } from '../values.ts';
import { setAsyncLevel } from './common-words.ts';
import { becomes, converted, type Dialect, type Field, ignored, type Own, refused, together } from './dialect.ts';
import {
  argumentsOf,
  type Arguments,
  placed,
  setServerArguments,
  transformersArguments,
  transformersTogether,
  vllmArguments,
} from './transformers-arguments.ts';

/**
 * verifiers before 0.1.7: GRPOConfig, whose fields are arguments of a Python class; here at the top of a file, in [trainer] or
 * in [trainer.args], which all are strict. It trains all weights by PPO's clipped loss with a KL term.
 */

const noQueue = 'a round is sampled by workers of its own';
const noPrints = 'rollouts are stored whole; see `ratchet rollouts`';

const trainerArguments: Readonly<Record<string, Field>> = {
  ...transformersArguments,
  per_device_train_batch_size: together(
    '`trainer.micro_batch_size`; × GPUs × gradient_accumulation_steps = `batch_size`',
    whole(1),
  ),
  gradient_accumulation_steps: together('`batch_size`, with per_device_train_batch_size', whole(1)),
  num_generations: becomes('rollouts_per_example', whole(1)),
  generation_batch_size: together('refused unless it is the batch', whole(1)),
  steps_per_generation: together('refused unless it is gradient_accumulation_steps', whole(1)),
  num_iterations: becomes('trainer.num_iterations', whole(1)),
  max_seq_len: together('`seq_len`, and what dr_grpo divides by', whole(1)),
  max_completion_length: together('the older name of max_seq_len', whole(1)),
  max_prompt_length: becomes('max_prompt_len', whole(1)),
  max_tokens: becomes('sampling.max_tokens', whole(1), { usual: 'max_seq_len' }),
  num_batches_ahead: together('`max_async_level`', whole(0)),
  async_generation_timeout: converted('generation_timeout', positive(), (seconds) => Math.ceil(seconds)),
  async_max_queue_size: ignored(noQueue, whole(1)),
  max_data_workers: ignored(noQueue, whole(0)),
  beta: becomes('kl_penalty.beta', atLeastZero()),
  epsilon: together('`trainer.loss.clip_low` = 1 − ε, and `clip_high` = 1 + ε', positive()),
  epsilon_high: together('`trainer.loss.clip_high` = 1 + ε', positive()),
  delta: refused('the upper bound of the ratio at negative advantages; see `epsilon_high`'),
  scale_rewards: converted('trainer.advantage.type', flag(), (isScaled) => (isScaled ? 'std_normalized' : 'centered')),
  loss_type: together('`trainer.loss.aggregation`', choice('grpo', 'bnpo', 'dr_grpo')),
  sync_ref_model: together('`kl_penalty.ref_sync_steps`', flag()),
  ref_model_sync_steps: together('`kl_penalty.ref_sync_steps`', whole(1)),
  ref_model_mixup_alpha: together('refused unless 1', atLeastZero()),
  disable_dropout: ignored('models are trained without dropout of their own', flag()),
  ds3_gather_for_generation: ignored('it is a setting of DeepSpeed', flag()),
  model_init_kwargs: ignored('models are read as their files say', args()),
  vllm_guided_decoding_regex: refused('guided decoding'),
  log_completions: ignored(noPrints, flag()),
  num_completions_to_print: ignored(noPrints, whole(0)),
  wandb_log_unique_prompts: ignored(noPrints, flag()),
};

/** Arguments that no other dialect has. */
const itsOwn = new Set(
  Object.keys(trainerArguments).filter(
    (name) =>
      !Object.hasOwn(transformersArguments, name) &&
      !['gradient_accumulation_steps', 'max_tokens', 'max_seq_len'].includes(name),
  ),
);

const argument = () => z.json().meta({ expected: 'a value of TOML' });
const seqLenUsual = 2048;

export const grpo: Dialect = {
  name: 'grpo',
  title: 'verifiers’ GRPOConfig (before 0.1.7)',
  fields: {
    model: becomes('model', text(), { isRequired: true }),
    'env.id': becomes('env[].id', environmentId(), { isRequired: true }),
    'env.args': becomes('env[].args', args()),
    'inference.gpus': becomes('inference.gpus', whole(1)),
    'inference.args': together('`inference.vllm`', args()),
    ...Object.fromEntries(vllmArguments.map((name) => [`inference.${name}`, together('`inference.vllm`', argument())])),
    'trainer.gpus': becomes('trainer.gpus', whole(1)),
    ...placed(trainerArguments, ['', 'trainer', 'trainer.args']),
  },
  defaults: {
    batch_size: 8,
    rollouts_per_example: 8,
    learning_rate: 1e-6,
    seed: 42,
    seq_len: seqLenUsual,
    mask_truncated_completions: true,
    max_prompt_len: 512,
    sampling: { temperature: 1 },
    kl_penalty: { beta: 0.001, ref_sync_steps: 100 },
    checkpoints: { interval: 500, keep_last: -1 },
    trainer: {
      micro_batch_size: 8,
      schedule: 'linear',
      advantage: { type: 'centered' },
      loss: { type: 'grpo', clip_low: 0.8, clip_high: 1.2, aggregation: 'dr_grpo' },
    },
  },
  mayBe: (table) =>
    [table, table['trainer'], valueAt(table, ['trainer', 'args'])].some(
      (place) => isTable(place) && Object.keys(place).some((key) => itsOwn.has(key)),
    ),
  synonyms: { rollouts_per_example: 'num_generations', micro_batch_size: 'per_device_train_batch_size' },
  together: (written, own) => {
    const given = argumentsOf(written, { names: Object.keys(trainerArguments), system: 'its trainer', own });
    transformersTogether(given, own, { evalSteps: 500, saveSteps: 500 });
    setServerArguments(written, own, { system: 'vf-rl', near: (name) => nearestName(name, vllmArguments) });
    if (given.value('max_steps') === undefined) {
      const expected = 'an integer ≥ 1: GRPOConfig would train whole epochs, which is not supported';
      own.refuse({ paths: [given.path('max_steps'), ['model']], expected, received: 'nothing' });
    }
    setAsyncLevel(own, given.value('num_batches_ahead'), given.path('num_batches_ahead'));
    setBatch(given, own);
    setLengths(given, own);
    setLoss(given, own);
    setReference(given, own);
  },
};

/** Rollouts of an optimizer step: rows at once × GPUs × how often they are accumulated. */
function setBatch({ value, path }: Arguments, own: Own): void {
  const micro = Number(value('per_device_train_batch_size') ?? 8);
  const accumulated = Number(value('gradient_accumulation_steps') ?? 1);
  const batch = micro * accumulated * Number(own.get(['trainer', 'gpus']) ?? 1);
  const from = path(
    value('per_device_train_batch_size') === undefined ? 'gradient_accumulation_steps' : 'per_device_train_batch_size',
  );
  own.set(['trainer', 'micro_batch_size'], micro, from);
  own.set(['batch_size'], batch, from);
  const bounds = { generation_batch_size: batch, steps_per_generation: accumulated };
  for (const [name, wanted] of Object.entries(bounds)) {
    const given = value(name);
    if (given === undefined || given === wanted) continue;
    own.refuse({
      paths: [path(name), from],
      expected: `${wanted}, or nothing: rollouts are sampled for one optimizer step at a time`,
      received: describe(given),
      suggestion: 'for several passes over a batch see num_iterations',
    });
  }
}

function setLengths({ value, path }: Arguments, own: Own): void {
  const named = value('max_completion_length') === undefined ? 'max_seq_len' : 'max_completion_length';
  const length = value(named) ?? seqLenUsual;
  own.set(['seq_len'], length, path(named));
  if (value('max_tokens') === undefined) own.set(['sampling', 'max_tokens'], length, path(named));
  if (named === 'max_completion_length') {
    own.warn('max_completion_length is the older name of max_seq_len, and counts as it, there as here');
  }
}

const aggregations = { grpo: 'sequence', bnpo: 'token', dr_grpo: 'dr_grpo' } as const;

function setLoss({ value, path }: Arguments, own: Own): void {
  const at = (key: string) => ['trainer', 'loss', key];
  const low = Number(value('epsilon') ?? 0.2);
  const high = Number(value('epsilon_high') ?? low);
  own.set(at('clip_low'), Math.max(0, rounded(1 - low)), path('epsilon'));
  own.set(at('clip_high'), rounded(1 + high), path(value('epsilon_high') === undefined ? 'epsilon' : 'epsilon_high'));
  const type = (value('loss_type') ?? 'dr_grpo') as keyof typeof aggregations;
  own.set(at('aggregation'), aggregations[type], path('loss_type'));
  if (type === 'dr_grpo') own.set(at('dr_grpo_tokens'), own.get(['seq_len']), path('max_seq_len'));
}

/** 1 − 0.2 is 0.8. */
function rounded(value: number): number {
  return Number(value.toPrecision(12));
}

/** Without a KL term the reference is only looked at. */
function setReference({ value, path }: Arguments, own: Own): void {
  const at = (key: string) => ['kl_penalty', key];
  const isSynced = value('sync_ref_model') !== false;
  const alpha = value('ref_model_mixup_alpha');
  const isMixed = isSynced && alpha !== undefined && alpha !== 1;
  const table: Table = { beta: own.get(at('beta')) };
  if (isSynced) table['ref_sync_steps'] = value('ref_model_sync_steps') ?? 100;
  if (isMixed) table['ref_mixup_alpha'] = alpha;
  for (const key of ['ref_model_sync_steps', 'ref_model_mixup_alpha']) {
    if (!isSynced && value(key) !== undefined) own.warn(`${key} has no effect with sync_ref_model = false`);
  }
  own.set(['kl_penalty'], table, path('sync_ref_model'));
  own.set(at('beta'), table['beta'], path('beta'));
  if (isSynced) own.set(at('ref_sync_steps'), table['ref_sync_steps'], path('ref_model_sync_steps'));
  if (isMixed) own.set(at('ref_mixup_alpha'), alpha, path('ref_model_mixup_alpha'));
  else if (isSynced && alpha === undefined) {
    own.warn(
      'the reference becomes the policy at every renewal here; ref_model_mixup_alpha = 0.5, its default, mixes the two',
    );
  }
}
