import { noValidation } from './common-words.ts';
import { refused } from './dialect.ts';
import { all, type Rows, under } from './ours.ts';

/** Fields of other systems' files that run files of ours do not have, each with advice: what they mean there is not lost. */
export const ratchetFields: Rows = {
  ...all(
    'sampling.extra_body env[].sampling.extra_body eval.sampling.extra_body eval.env[].sampling.extra_body',
    refused('further fields of a request; only those that [sampling] has by name'),
  ),
  ...under(
    'trainer',
    all(
      'ac_offloading dp_replicate impl tp trust_remote_code',
      refused(
        'how another system trains; leave it out, or with kind = "prime-rl" write it into [trainer.prime_rl.model]',
      ),
    ),
  ),
  'inference.client': refused('prime-rl’s client; leave it out, it has no effect here'),
  'kl_penalty.ref_mixup_alpha': refused('references that are mixed; a reference is renewed as a whole'),
  val: refused(`validation batches; ${noValidation}`),
  adapters: refused('LoRA adapters; weights are exported with every checkpoint'),
  checkpoint_id: refused('warm start by checkpoint id; point `model` at a folder of weights'),
  cluster_name: refused('hosted clusters'),
  gradient_accumulation_steps: refused(
    'steps of several batches; a batch is one step, of which [trainer] micro_batch_size rows are computed at once',
  ),
  infrastructure: refused('hosted machine sizes'),
  run_config: refused('hosted overrides'),
  tailscale: refused('hosted networking'),
  'buffer.env_ratios': refused('ratios in one list; give each [[env]] a weight'),
  'buffer.seed': refused('a seed of its own; the run has one `seed`'),
  'buffer.skip_verification': refused('rollouts without scoring'),
  'env[].ratio': refused('ratios; give each [[env]] a weight'),
  'env[].max_concurrent': refused(
    'a bound of its own; max_concurrent at the top is shared among environments by their weights',
  ),
  'env[].tasks_per_minute': refused(
    'a pace of its own; tasks_per_minute at the top is shared among environments by their weights',
  ),
  'env[].harness': refused('a harness beside the agent that has it; write [env.agent.harness]'),
  'eval.env[].harness': refused('a harness beside the agent that has it; write [eval.env.agent.harness]'),
  'env[].taskset': refused('verifiers v1 tasksets; name a built-in environment by id'),
  ...all('env[].version eval.env[].version', refused('versions; the built-in environment is used')),
};

/** Other trainers' names for our fields. */
export const synonyms: Readonly<Record<string, string>> = {
  lr: 'learning_rate',
  group_size: 'rollouts_per_example',
  num_generations: 'rollouts_per_example',
  max_inflight_rollouts: 'max_concurrent',
  steps: 'max_steps',
  max_new_tokens: 'max_tokens',
  max_completion_length: 'max_tokens',
  env_file: 'env_files',
  envs: 'env',
  environment: 'env',
  environments: 'env',
  ckpt: 'checkpoints',
  checkpoint: 'checkpoints',
  optimizer: 'trainer',
  kl: 'kl_penalty',
  rank: 'r',
  lora_rank: 'r',
  lora_dropout: 'dropout',
  lora_target_modules: 'target_modules',
  loss_aggregation: 'aggregation',
};

/** Expands short spellings of a config: `loss = "grpo"` is `[trainer.loss] type = "grpo"`. */
export function writeOutShorthands(table: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const trainer = table['trainer'];
  if (typeof trainer !== 'object' || trainer === null || Array.isArray(trainer)) return { ...table };
  const written = Object.entries(trainer).map(([key, value]) => {
    const isShort = (key === 'loss' || key === 'advantage') && typeof value === 'string';
    return [key, isShort ? { type: value } : value];
  });
  return { ...table, trainer: Object.fromEntries(written) };
}
