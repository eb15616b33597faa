import { formatPath } from '../toml/positions.ts';
import { describe } from '../toml/reporter.ts';
import { isTable, type Table, valueAt } from '../toml/tables.ts';
import { args, atLeastZero, choice, flag, positive, whole } from '../toml/values.ts';
import { wholeBatches } from './common-words.ts';
import { becomes, converted, type Dialect, ignored, only, type Own, refused, together } from './dialect.ts';
import { all, type Rows } from './ours.ts';
import {
  argumentsOf,
  type Arguments,
  setServerArguments,
  transformersArguments,
  transformersTogether,
  verifiersFields,
} from './transformers-arguments.ts';

/**
 * verifiers before 0.1.7: GRPOConfig, whose fields are arguments of a Python class; here at the top of a file, in
 * [trainer] or in [trainer.args], all strict. It trains all weights by PPO's clipped loss with a KL term.
 */

const noQueue = 'a round is sampled by workers of its own';
const noPrints = 'rollouts are stored whole; see `ratchet rollouts`';

const trainerArguments: Rows = {
  ...transformersArguments,
  per_device_train_batch_size: together(
    '`trainer.micro_batch_size`; × GPUs × gradient_accumulation_steps = `batch_size`',
    whole(1),
  ),
  gradient_accumulation_steps: together('`batch_size`, with per_device_train_batch_size', whole(1)),
  num_generations: becomes('rollouts_per_example'),
  generation_batch_size: together('refused unless it is the batch', whole(1)),
  steps_per_generation: together('refused unless it is gradient_accumulation_steps', whole(1)),
  num_iterations: becomes('trainer.num_iterations'),
  max_seq_len: together('`seq_len`, and what dr_grpo divides by', whole(1)),
  max_completion_length: together('the older name of max_seq_len', whole(1)),
  max_prompt_length: becomes('max_prompt_len'),
  max_tokens: becomes('sampling.max_tokens', { default: 'max_seq_len' }),
  num_batches_ahead: becomes('max_async_level', whole(0)),
  async_generation_timeout: converted('generation_timeout', positive(), (seconds) => Math.ceil(seconds)),
  async_max_queue_size: ignored(noQueue, whole(1)),
  max_data_workers: ignored(noQueue, whole(0)),
  beta: becomes('kl_penalty.beta'),
  epsilon: together('`trainer.loss.clip_low` = 1 − ε, and `clip_high` = 1 + ε', positive()),
  epsilon_high: together('`trainer.loss.clip_high` = 1 + ε', positive()),
  delta: refused('the upper bound of the ratio at negative advantages; see `epsilon_high`'),
  scale_rewards: converted('trainer.advantage.type', flag(), (isScaled) => (isScaled ? 'std_normalized' : 'centered')),
  loss_type: converted(
    'trainer.loss.aggregation',
    choice('grpo', 'bnpo', 'dr_grpo'),
    (type) => ({ grpo: 'sequence', bnpo: 'token', dr_grpo: 'dr_grpo' })[type],
  ),
  sync_ref_model: together('whether there is a `kl_penalty.ref_sync_steps`', flag()),
  ref_model_sync_steps: becomes('kl_penalty.ref_sync_steps'),
  ref_model_mixup_alpha: only(1, 'the reference is renewed as a whole', atLeastZero()),
  disable_dropout: ignored('models are trained without dropout of their own', flag()),
  ds3_gather_for_generation: ignored('it is a setting of DeepSpeed', flag()),
  model_init_kwargs: ignored('models are read as their files say', args()),
  vllm_guided_decoding_regex: refused('guided decoding'),
  ...all('log_completions wandb_log_unique_prompts', ignored(noPrints, flag())),
  num_completions_to_print: ignored(noPrints, whole(0)),
};

/** Arguments that only this dialect has. */
const itsOwn = new Set(
  Object.keys(trainerArguments).filter(
    (name) =>
      !Object.hasOwn(transformersArguments, name) &&
      !['gradient_accumulation_steps', 'max_tokens', 'max_seq_len'].includes(name),
  ),
);

const seqLenDefault = 2048;

export const grpo: Dialect = {
  name: 'grpo',
  title: 'verifiers’ GRPOConfig (before 0.1.7)',
  fields: verifiersFields(trainerArguments, { tables: ['', 'trainer', 'trainer.args'], isRequired: false }),
  defaults: {
    batch_size: 8,
    rollouts_per_example: 8,
    learning_rate: 1e-6,
    seed: 42,
    seq_len: seqLenDefault,
    mask_truncated_completions: true,
    max_prompt_len: 512,
    sampling: { temperature: 1 },
    kl_penalty: { beta: 0.001, ref_sync_steps: 100 },
    checkpoints: { interval: 500, keep_last: -1 },
    trainer: {
      micro_batch_size: 8,
      decay_matrices_only: true,
      schedule: 'linear',
      // The sampling policy's log probabilities are unknown (grpo_trainer.py of 0.1.6).
      correction: { weight: 'none' },
      advantage: { type: 'centered' },
      loss: { type: 'grpo', clip_low: 0.8, clip_high: 1.2, aggregation: 'dr_grpo', old_logprobs: 'trainer' },
    },
    ...wholeBatches,
  },
  mayBe: (table) =>
    [table, table['trainer'], valueAt(table, ['trainer', 'args'])].some(
      (place) => isTable(place) && Object.keys(place).some((key) => itsOwn.has(key)),
    ),
  synonyms: { rollouts_per_example: 'num_generations', micro_batch_size: 'per_device_train_batch_size' },
  together: (written, own) => {
    const given = argumentsOf(written, { names: Object.keys(trainerArguments), system: 'its trainer', own });
    transformersTogether(given, own, { evalSteps: 500, saveSteps: 500, schedule: 'linear' });
    setServerArguments(written, own);
    if (given.value('max_steps') === undefined) {
      const expected = 'an integer ≥ 1: GRPOConfig would train whole epochs, which is not supported';
      own.refuse({ paths: [given.path('max_steps'), ['model']], expected, received: 'nothing' });
    }
    setBatch(given, own);
    setLengths(given, own);
    setLoss(given, own);
    setReference(given, own);
    sayDifferences(given, own);
  },
};

/** Warns of GRPOTrainer's behaviour that a run here lacks. */
function sayDifferences({ value, path }: Arguments, own: Own): void {
  own.warn(
    'attention: GRPOTrainer hides what carries no loss from the policy while it trains, prompts and answers of tools too; here a token is trained in its context.',
  );
  own.warn(
    'failures: GRPOTrainer trains a rollout whose environment failed, with its reward of 0; here it is played again, and not trained where that does not help.',
  );
  const parts = Number(own.get(['batch_size'])) / Number(own.get(['trainer', 'micro_batch_size']));
  if (value('loss_type') === 'bnpo' && parts > 1) {
    own.warn(
      `${formatPath(path('loss_type'))} = "bnpo": GRPOTrainer divides each of the ${parts} parts of a batch by its own tokens, and takes their mean; here all are divided by those of the batch.`,
    );
  }
  const passes = Number(value('num_iterations') ?? 1);
  if (passes === 1) return;
  own.warn(
    `${formatPath(path('num_iterations'))} = ${passes}: a step here is a batch with its ${passes} passes, and GRPOTrainer counts each pass in max_steps and in the schedule of its learning rate.`,
  );
}

/** Rollouts of an optimizer step: concurrent rows × GPUs × accumulation steps. */
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
  const length = value(named) ?? seqLenDefault;
  own.set(['seq_len'], length, path(named));
  if (value('max_tokens') === undefined) own.set(['sampling', 'max_tokens'], length, path(named));
  if (named === 'max_completion_length') {
    own.warn('max_completion_length is the older name of max_seq_len, and counts as it, there as here');
  }
}

function setLoss({ value, path }: Arguments, own: Own): void {
  const at = (key: string) => ['trainer', 'loss', key];
  const low = Number(value('epsilon') ?? 0.2);
  const high = Number(value('epsilon_high') ?? low);
  own.set(at('clip_low'), Math.max(0, rounded(1 - low)), path('epsilon'));
  own.set(at('clip_high'), rounded(1 + high), path(value('epsilon_high') === undefined ? 'epsilon' : 'epsilon_high'));
  if (own.get(at('aggregation')) === 'dr_grpo')
    own.set(at('dr_grpo_tokens'), own.get(['seq_len']), path('max_seq_len'));
}

/** Removes binary noise: 1 − 0.2 is 0.8. */
function rounded(value: number): number {
  return Number(value.toPrecision(12));
}

/** Without renewal the reference stays v0. */
function setReference({ value, path }: Arguments, own: Own): void {
  if (value('sync_ref_model') === false) {
    const { beta } = own.get(['kl_penalty']) as Table;
    own.set(['kl_penalty'], { beta }, path('sync_ref_model'));
    for (const key of ['ref_model_sync_steps', 'ref_model_mixup_alpha'])
      if (value(key) !== undefined) own.warn(`${key} has no effect with sync_ref_model = false`);
  } else if (value('ref_model_mixup_alpha') === undefined) {
    own.warn(
      'the reference becomes the policy at every renewal here; ref_model_mixup_alpha = 0.5, its default, mixes the two',
    );
  }
}
