import { z } from 'zod';
import { loraModules } from '../settings/optimizer.ts';
import { isTable, type Table } from '../toml/tables.ts';
import { flag, positive, texts, whole } from '../toml/values.ts';
import { maskedImportanceSampling, wholeBatches } from './common-words.ts';
import { becomes, converted, type Dialect, ignored, type Own } from './dialect.ts';
import { type Rows, wordsOf } from './ours.ts';
import {
  argumentsOf,
  type Arguments,
  setServerArguments,
  transformersArguments,
  transformersTogether,
  verifiersFields,
} from './transformers-arguments.ts';

/**
 * verifiers' own trainer, `vf-rl @ FILE`: RLConfig, from verifiers 0.1.7 on. Its loss is −ρ·A over the tokens whose
 * ratio the mask keeps; batches are one step off policy. It trains LoRA adapters by default.
 */

const notRead = 'the trainer has it and does not read it';

/** Arguments of GRPOConfig that the documentation of 0.1.7 lists for vf-rl, with the same meanings. */
const olderArguments: Rows = {
  num_generations: becomes('rollouts_per_example', { isShared: true }),
  per_device_train_batch_size: becomes('trainer.micro_batch_size', { isShared: true }),
  max_prompt_length: becomes('max_prompt_len', { isShared: true }),
  num_iterations: becomes('trainer.num_iterations'),
  num_batches_ahead: becomes('max_async_level', whole(0)),
  beta: becomes('kl_penalty.beta'),
};

const trainerArguments: Rows = {
  ...transformersArguments,
  ...olderArguments,
  use_liger: becomes('trainer.use_liger'),
  use_lora: becomes('lora.enabled'),
  lora_rank: becomes('lora.r'),
  lora_alpha: becomes('lora.alpha'),
  lora_dropout: becomes('lora.dropout'),
  lora_target_modules: converted(
    'lora.target_modules',
    z.union([texts(), z.literal('all-linear')]).meta({ expected: 'a list of texts, or "all-linear"' }),
    (modules) => (modules === 'all-linear' ? [...loraModules] : modules),
  ),
  lora_modules_to_save: ignored(notRead, texts()),
  lora_use_rslora: ignored(notRead, flag()),
  batch_size: becomes('batch_size'),
  rollouts_per_example: becomes('rollouts_per_example', { isShared: true }),
  micro_batch_size: becomes('trainer.micro_batch_size', { isShared: true }),
  gradient_accumulation_steps: ignored('it follows from batch_size and micro_batch_size, there as here', whole(1)),
  max_seq_len: becomes('seq_len'),
  max_prompt_len: becomes('max_prompt_len', { isShared: true }),
  mask_ratio_low: becomes('trainer.loss.mask_low'),
  mask_ratio_high: becomes('trainer.loss.mask_high'),
  max_tokens: becomes('sampling.max_tokens', { default: 'max_seq_len' }),
  generation_timeout: converted('generation_timeout', positive(), (seconds) => Math.ceil(seconds)),
};

export const vfRl: Dialect = {
  name: 'vf-rl',
  title: 'vf-rl (verifiers’ RLConfig)',
  fields: verifiersFields(trainerArguments, { tables: ['trainer', 'trainer.args'], isRequired: true }),
  defaults: {
    max_steps: 500,
    batch_size: 512,
    rollouts_per_example: 16,
    learning_rate: 1e-5,
    seed: 42,
    seq_len: 2048,
    max_prompt_len: 512,
    lora: { r: 8, alpha: 32 },
    sampling: { temperature: 1 },
    checkpoints: { interval: 50, keep_last: -1 },
    ...wholeBatches,
    trainer: { micro_batch_size: 8, decay_matrices_only: true, dtype: 'bfloat16', loss: maskedImportanceSampling },
  },
  mayBe: ({ trainer, inference }) => (isTable(trainer) || isTable(inference)) && !isAllOlder(trainer),
  synonyms: { lr: 'learning_rate' },
  together: (written, own) => {
    const given = argumentsOf(written, { names: Object.keys(trainerArguments), system: 'vf-rl', own });
    transformersTogether(given, own, { evalSteps: 50, saveSteps: 50, schedule: 'constant' });
    setServerArguments(written, own);
    warnOfOlder(given, own);
    warnOfFirstDefaults(given, own);
    if (given.value('max_tokens') === undefined) {
      own.set(['sampling', 'max_tokens'], own.get(['seq_len']), given.path('max_seq_len'));
    }
    own.warn(
      `max_seq_len: a row longer than ${String(own.get(['seq_len']))} tokens is cut here; RLTrainer trains it whole. A rollout whose environment failed is not trained here; there it counts with its reward, which is 0.`,
    );
    checkDivision(written, given, own);
  },
};

/** Arguments that GRPOConfig lacks. */
const itsOwn = wordsOf(
  'use_liger use_lora lora_rank lora_alpha lora_dropout lora_target_modules rollouts_per_example batch_size micro_batch_size max_prompt_len mask_ratio_low mask_ratio_high generation_timeout',
);

/** Whether it only has arguments of GRPOConfig that vf-rl lacks: such a file is the older trainer's. */
function isAllOlder(trainer: unknown): boolean {
  const places = [trainer, isTable(trainer) ? trainer['args'] : undefined].filter(isTable);
  const has = (names: readonly string[]): boolean => names.some((name) => places.some((place) => name in place));
  return has(Object.keys(olderArguments)) && !has(itsOwn);
}

function warnOfOlder({ value }: Arguments, own: Own): void {
  const older = Object.keys(olderArguments).filter((name) => value(name) !== undefined);
  if (older.length === 0) return;
  own.warn(
    `${older.join(', ')}: of GRPOConfig, verifiers before 0.1.7; vf-rl's RLConfig does not read ${older.length === 1 ? 'it' : 'them'}. Here ${older.length === 1 ? 'it counts' : 'they count'}, under vf-rl's loss and defaults`,
  );
}

/**
 * Defaults of the two weeks before verifiers 0.1.7 (`RLConfig` of 23 October to 5 November 2025), whose files do not
 * state their version.
 */
const firstDefaults: Readonly<Record<string, string>> = {
  learning_rate: '1e-5, for some days 3e-5 and 1e-4',
  weight_decay: '0.01',
  lora_rank: '16',
  lora_alpha: '16',
};

function warnOfFirstDefaults({ value }: Arguments, own: Own): void {
  const adapts = value('use_lora') !== false;
  const missing = Object.entries(firstDefaults).filter(
    ([name]) => value(name) === undefined && (adapts || !name.startsWith('lora_')),
  );
  if (missing.length === 0) return;
  const before = missing.map(([name, was]) => `${name} ${was}`).join('; ');
  own.warn(
    `${missing.map(([name]) => name).join(', ')} ${missing.length === 1 ? 'is' : 'are'} not written: taken as RLConfig has ${missing.length === 1 ? 'it' : 'them'} since verifiers 0.1.7 (November 2025); in the weeks before it was ${before}.`,
  );
}

/** RLConfig asserts the same. */
function checkDivision(written: Table, { path }: Arguments, own: Own): void {
  const [batch, micro, gpus] = [['batch_size'], ['trainer', 'micro_batch_size'], ['trainer', 'gpus']].map((at) =>
    Number(own.get(at)),
  );
  const rows = micro! * gpus!;
  if (batch! % rows === 0 || !Number.isFinite(rows)) return;
  const below = Math.floor(batch! / rows) * rows;
  own.refuse({
    paths: [path('batch_size'), path('micro_batch_size'), ['trainer', 'gpus']],
    expected: `a multiple of micro_batch_size × the trainer's GPUs (${micro} × ${gpus})`,
    received: String(batch),
    suggestion: `use ${below > 0 ? `${below} or ` : ''}${below + rows}`,
  });
}
