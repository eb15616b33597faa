import type { Table } from '../tables.ts';
import { atLeastZero, countOrAll, positive, text, whole } from '../values.ts';
import { maskedImportanceSampling } from './common-words.ts';
import { becomes, type Dialect, type Own } from './dialect.ts';
import { ours, same, sameIn } from './ours.ts';

/**
 * What the documentation of prime-rl shows for `uv run prime-rl FILE`: one flat table, Hosted Training's with tables for
 * LoRA, a difficulty filter and a KL penalty. No release of prime-rl reads it.
 */
export const flat: Dialect = {
  name: 'flat',
  title: 'the flat files of prime-rl’s documentation',
  fields: {
    model: becomes('model', text(), { isRequired: true }),
    learning_rate: ours('learning_rate', { usual: '1e-5 with [lora], else 1e-6' }),
    max_steps: becomes('max_steps', whole(1)),
    ...same('batch_size', 'rollouts_per_example'),
    micro_batch_size: ours('trainer.micro_batch_size'),
    gradient_accumulation_steps: becomes('gradient_accumulation_steps', whole(1)),
    warmup_steps: ours('warmup_steps'),
    ...sameIn('lora', 'enabled', 'r', 'alpha'),
    'lora.dropout': becomes('lora.dropout', atLeastZero()),
    ...same('lora.target_modules', 'sampling.max_tokens'),
    'sampling.temperature': becomes('sampling.temperature', atLeastZero()),
    'sampling.top_p': becomes('sampling.top_p', positive()),
    'sampling.top_k': becomes('sampling.top_k', countOrAll('tokens')),
    'sampling.min_p': becomes('sampling.min_p', atLeastZero()),
    ...sameIn('sampling', 'repetition_penalty', 'stop'),
    ...sameIn('env[]', 'id', 'name', 'args', 'weight', 'system_prompt'),
    ...sameIn('difficulty_filter', 'enabled', 'min_reward_variance', 'max_reward', 'min_reward'),
    ...sameIn('kl_penalty', 'enabled', 'target_kl', 'beta'),
    ...sameIn('wandb', 'project', 'name', 'entity'),
    // Not in the documents: as we have them, so that a file that has them as well is not taken for one of others.
    ...same('name', 'seed', 'seq_len', 'max_async_level'),
    ...sameIn('eval', 'interval', 'num_examples', 'rollouts_per_example', 'eval_base_model'),
    ...sameIn('eval.env[]', 'id', 'name', 'args', 'system_prompt', 'num_examples', 'rollouts_per_example'),
    ...sameIn('checkpoints', 'interval', 'keep_last'),
  },
  defaults: { trainer: { loss: maskedImportanceSampling } },
  together: emptyTablesAndRate,
};

/** `[lora]` alone asks for LoRA. The rates are the documentation's: "1e-5 for LoRA, 1e-6 for full finetuning". */
function emptyTablesAndRate(written: Table, own: Own): void {
  for (const table of ['lora', 'difficulty_filter', 'kl_penalty', 'wandb', 'eval']) {
    if (written[table] !== undefined && own.get([table]) === undefined) own.set([table], {}, [table]);
  }
  const isLora = written['lora'] !== undefined && own.get(['lora', 'enabled']) !== false;
  if (written['learning_rate'] === undefined) own.set(['learning_rate'], isLora ? 1e-5 : 1e-6);
}
