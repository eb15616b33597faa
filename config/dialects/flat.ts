import type { Table } from '../tables.ts';
import {
  anyNumber,
  args,
  atLeastZero,
  choices,
  countOrAll,
  environmentId,
  environmentLabel,
  flag,
  positive,
  stopTexts,
  text,
  whole,
} from '../values.ts';
import { maskedImportanceSampling } from './common-words.ts';
import { becomes, type Dialect, type Own } from './dialect.ts';
import { loraModules } from '../settings/optimizer.ts';

/**
 * What the documentation of prime-rl shows for `uv run prime-rl FILE`: one flat table, Hosted Training's with tables for
 * LoRA, a difficulty filter and a KL penalty. No release of prime-rl reads it.
 */
export const flat: Dialect = {
  name: 'flat',
  title: 'the flat files of prime-rl’s documentation',
  fields: {
    model: becomes('model', text(), { isRequired: true }),
    learning_rate: becomes('learning_rate', positive(), { usual: '1e-5 with [lora], else 1e-6' }),
    max_steps: becomes('max_steps', whole(1)),
    batch_size: becomes('batch_size', whole(1)),
    rollouts_per_example: becomes('rollouts_per_example', whole(1)),
    micro_batch_size: becomes('trainer.micro_batch_size', whole(1)),
    gradient_accumulation_steps: becomes('gradient_accumulation_steps', whole(1)),
    warmup_steps: becomes('warmup_steps', whole(0)),
    'lora.enabled': becomes('lora.enabled', flag()),
    'lora.r': becomes('lora.r', whole(1)),
    'lora.alpha': becomes('lora.alpha', positive()),
    'lora.dropout': becomes('lora.dropout', atLeastZero()),
    'lora.target_modules': becomes('lora.target_modules', choices(...loraModules)),
    'sampling.max_tokens': becomes('sampling.max_tokens', whole(1)),
    'sampling.temperature': becomes('sampling.temperature', atLeastZero()),
    'sampling.top_p': becomes('sampling.top_p', positive()),
    'sampling.top_k': becomes('sampling.top_k', countOrAll('tokens')),
    'sampling.min_p': becomes('sampling.min_p', atLeastZero()),
    'sampling.repetition_penalty': becomes('sampling.repetition_penalty', positive()),
    'sampling.stop': becomes('sampling.stop', stopTexts()),
    'env[].id': becomes('env[].id', environmentId()),
    'env[].name': becomes('env[].name', environmentLabel()),
    'env[].args': becomes('env[].args', args()),
    'env[].weight': becomes('env[].weight', positive()),
    'difficulty_filter.enabled': becomes('difficulty_filter.enabled', flag()),
    'difficulty_filter.min_reward_variance': becomes('difficulty_filter.min_reward_variance', atLeastZero()),
    'difficulty_filter.max_reward': becomes('difficulty_filter.max_reward', anyNumber()),
    'difficulty_filter.min_reward': becomes('difficulty_filter.min_reward', anyNumber()),
    'kl_penalty.enabled': becomes('kl_penalty.enabled', flag()),
    'kl_penalty.target_kl': becomes('kl_penalty.target_kl', positive()),
    'kl_penalty.beta': becomes('kl_penalty.beta', atLeastZero()),
    'wandb.project': becomes('wandb.project', text()),
    'wandb.name': becomes('wandb.name', text()),
    'wandb.entity': becomes('wandb.entity', text()),
  },
  defaults: { trainer: { loss: maskedImportanceSampling } },
  together: emptyTablesAndRate,
};

/** `[lora]` alone asks for LoRA. The rates are the documentation's: "1e-5 for LoRA, 1e-6 for full finetuning". */
function emptyTablesAndRate(written: Table, own: Own): void {
  for (const table of ['lora', 'difficulty_filter', 'kl_penalty', 'wandb']) {
    if (written[table] !== undefined && own.get([table]) === undefined) own.set([table], {}, [table]);
  }
  const isLora = written['lora'] !== undefined && own.get(['lora', 'enabled']) !== false;
  if (written['learning_rate'] === undefined) own.set(['learning_rate'], isLora ? 1e-5 : 1e-6);
}
