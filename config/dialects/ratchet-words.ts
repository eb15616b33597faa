/**
 * Fields of Hosted Training, its older versions or its documentation that Ratchet cannot honour yet, each with advice.
 * They are refused by name, because ignoring one would change what is trained.
 */
export const knownUnsupported: Readonly<Record<string, string>> = {
  adapters: 'LoRA adapters; weights are exported with every checkpoint',
  checkpoint_id: 'warm start by checkpoint id; point `model` at a folder of weights',
  cluster_name: 'hosted clusters',
  gradient_accumulation_steps:
    'steps of several batches; a batch is one step, of which [trainer] micro_batch_size rows are computed at once',
  infrastructure: 'hosted machine sizes',
  run_config: 'hosted overrides',
  tailscale: 'hosted networking',
  teacher: 'distillation from a teacher',
  'buffer.env_ratios': 'ratios in one list; give each [[env]] a weight',
  'buffer.seed': 'a seed of its own; the run has one `seed`',
  'buffer.skip_verification': 'rollouts without scoring',
  'env.ratio': 'ratios; give each [[env]] a weight',
  'env.max_concurrent': 'a bound of its own; max_concurrent at the top is shared among environments by their weights',
  'env.tasks_per_minute':
    'a pace of its own; tasks_per_minute at the top is shared among environments by their weights',
  'env.harness': 'a harness beside the agent that has it; write [env.agent.harness]',
  'eval.env.harness': 'a harness beside the agent that has it; write [eval.env.agent.harness]',
  'env.taskset': 'verifiers v1 tasksets; name a built-in environment by id',
  'env.version': 'versions; the built-in environment is used',
  'eval.env.version': 'versions; the built-in environment is used',
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
