import { z } from 'zod';
import { nearestName } from '../../core/suggest.ts';
import { isTable, type Table } from '../tables.ts';
import { args, choices, decay, environmentId, flag, positive, text, whole, atLeastZero } from '../values.ts';
import { maskedImportanceSampling } from './common-words.ts';
import { becomes, converted, type Dialect, type Field, ignored, type Own, together } from './dialect.ts';
import { loraModules } from '../settings/optimizer.ts';
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
 * verifiers' own trainer, `vf-rl @ FILE`: RLConfig, from verifiers 0.1.7 on. Its loss is −ρ·A over the tokens whose ratio the
 * mask keeps; batches are one step off policy. It trains LoRA adapters unless told otherwise.
 */

const notRead = 'the trainer has it and does not read it';

const trainerArguments: Readonly<Record<string, Field>> = {
  ...transformersArguments,
  use_liger: becomes('trainer.use_liger', flag()),
  use_lora: becomes('lora.enabled', flag()),
  lora_rank: becomes('lora.r', whole(1)),
  lora_alpha: becomes('lora.alpha', positive()),
  lora_dropout: becomes('lora.dropout', decay()),
  lora_target_modules: becomes('lora.target_modules', choices(...loraModules)),
  lora_modules_to_save: ignored(notRead, text().array().meta({ expected: 'a list of texts' })),
  lora_use_rslora: ignored(notRead, flag()),
  rollouts_per_example: becomes('rollouts_per_example', whole(1)),
  batch_size: becomes('batch_size', whole(1)),
  micro_batch_size: becomes('trainer.micro_batch_size', whole(1)),
  gradient_accumulation_steps: ignored('it follows from batch_size and micro_batch_size, there as here', whole(1)),
  max_seq_len: becomes('seq_len', whole(1)),
  max_prompt_len: becomes('max_prompt_len', whole(1)),
  mask_ratio_low: becomes('trainer.loss.mask_low', atLeastZero()),
  mask_ratio_high: becomes('trainer.loss.mask_high', positive()),
  max_tokens: becomes('sampling.max_tokens', whole(1), { usual: 'max_seq_len' }),
  generation_timeout: converted('generation_timeout', positive(), (seconds) => Math.ceil(seconds)),
};

const argument = () => z.json().meta({ expected: 'a value of TOML' });

export const vfRl: Dialect = {
  name: 'vf-rl',
  title: 'vf-rl (verifiers’ RLConfig)',
  fields: {
    model: becomes('model', text(), { isRequired: true }),
    'env.id': becomes('env[].id', environmentId(), { isRequired: true }),
    'env.args': becomes('env[].args', args()),
    'inference.gpus': becomes('inference.gpus', whole(1), { isRequired: true }),
    'inference.args': together('`inference.vllm`', args()),
    ...Object.fromEntries(vllmArguments.map((name) => [`inference.${name}`, together('`inference.vllm`', argument())])),
    'trainer.gpus': becomes('trainer.gpus', whole(1), { isRequired: true }),
    ...placed(trainerArguments, ['trainer', 'trainer.args']),
  },
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
    trainer: { micro_batch_size: 8, loss: maskedImportanceSampling },
  },
  mayBe: ({ trainer, inference }) => isTable(trainer) || isTable(inference),
  synonyms: {
    num_generations: 'rollouts_per_example',
    per_device_train_batch_size: 'micro_batch_size',
    lr: 'learning_rate',
  },
  together: (written, own) => {
    const given = argumentsOf(written, { names: Object.keys(trainerArguments), system: 'vf-rl', own });
    transformersTogether(given, own, { evalSteps: 50, saveSteps: 50 });
    setServerArguments(written, own, { system: 'vf-rl', near: (name) => nearestName(name, vllmArguments) });
    if (given.value('max_tokens') === undefined) {
      own.set(['sampling', 'max_tokens'], own.get(['seq_len']), given.path('max_seq_len'));
    }
    checkDivision(written, given, own);
  },
};

/** As RLConfig asserts it. */
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
