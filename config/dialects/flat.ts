import type { Table } from '../toml/tables.ts';
import { atLeastZero, countOrAll, positive, text, whole } from '../toml/values.ts';
import { maskedImportanceSampling } from './common-words.ts';
import { becomes, type Dialect, only, type Own } from './dialect.ts';
import { same } from './ours.ts';

/**
 * The form in prime-rl's documentation of `uv run prime-rl FILE`: one flat table, Hosted Training's with tables for
 * LoRA, a difficulty filter and a KL penalty. No release of prime-rl reads it.
 */
export const flat: Dialect = {
  name: 'flat',
  title: 'the flat files of prime-rl’s documentation',
  fields: {
    model: becomes('model', text(), { isRequired: true }),
    learning_rate: becomes('learning_rate', { default: '1e-5 with [lora], else 1e-6' }),
    max_steps: becomes('max_steps', whole(1)),
    ...same('', 'batch_size rollouts_per_example'),
    micro_batch_size: becomes('trainer.micro_batch_size'),
    gradient_accumulation_steps: only(
      1,
      'a batch is one optimizer step; micro_batch_size says how many rows are computed at once',
      whole(1),
    ),
    warmup_steps: becomes('warmup_steps'),
    ...same('lora', 'enabled r alpha'),
    'lora.dropout': becomes('lora.dropout', atLeastZero()),
    ...same('', 'lora.target_modules sampling.max_tokens'),
    'sampling.temperature': becomes('sampling.temperature', atLeastZero()),
    'sampling.top_p': becomes('sampling.top_p', positive()),
    'sampling.top_k': becomes('sampling.top_k', countOrAll('tokens')),
    'sampling.min_p': becomes('sampling.min_p', atLeastZero()),
    ...same('sampling', 'repetition_penalty stop'),
    ...same('env[]', 'id name args weight system_prompt'),
    ...same('difficulty_filter', 'enabled min_reward_variance max_reward min_reward'),
    ...same('kl_penalty', 'enabled target_kl beta'),
    ...same('wandb', 'project name entity'),
    // Missing in the documentation: our own meaning, so that a file that also has them is not taken for another
    // dialect.
    ...same('', 'name seed seq_len max_async_level'),
    ...same('eval', 'interval num_examples rollouts_per_example eval_base_model'),
    ...same('eval.env[]', 'id name args system_prompt num_examples rollouts_per_example'),
    ...same('checkpoints', 'interval keep_last'),
  },
  defaults: { trainer: { loss: maskedImportanceSampling } },
  together: emptyTablesAndRate,
};

/** An empty `[lora]` requests LoRA. The rates are the documentation's: "1e-5 for LoRA, 1e-6 for full finetuning". */
function emptyTablesAndRate(written: Table, own: Own): void {
  for (const table of ['lora', 'difficulty_filter', 'kl_penalty', 'wandb', 'eval']) {
    if (written[table] !== undefined && own.get([table]) === undefined) own.set([table], {}, [table]);
  }
  const isLora = written['lora'] !== undefined && own.get(['lora', 'enabled']) !== false;
  if (written['learning_rate'] === undefined) own.set(['learning_rate'], isLora ? 1e-5 : 1e-6);
}
