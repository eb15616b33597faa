import { z } from 'zod';
import { headersFromEnv, serverUrls } from '../../models/model-access.ts';
import { anyNumber, args, choice, flag, fraction, positive, text, texts, whole } from '../../toml/values.ts';
import { filters, noValidation } from '../common-words.ts';
import { becomes, converted, type Field, ignored, only, passed, refused, together } from '../dialect.ts';
import { all, into, type Rows, under, wordsOf } from '../ours.ts';
import { hostedKeys } from './prime-rl-hosted.ts';
import { optimizerRows, optimizerType } from './prime-rl-optimizer.ts';

/**
 * Every field of `rl`'s files in prime-rl as of autumn 2026, and those of v0.5 to v0.9 that it dropped. Mere renames
 * are in prime-rl-renames.ts. A name with a `?` may be "None", which is prime-rl's null.
 */

/** Settings of prime-rl's own processes and their traffic. */
export const why = {
  teacherServer:
    'a server of the teacher’s own is not started here: start it, and name its client.base_url in orchestrator.teacher_model',
  processes: 'Ratchet starts and places its own processes',
  speed: 'it is about the speed or the memory of GPUs alone',
  modelCode: 'no code that comes with a model is run',
  client: 'requests are sent as [ratchet.inference] says',

  replay: 'log probabilities are of all tokens, and [trainer.correction] weighs what was drawn',
  experts: 'which experts compute a token is found anew in training; the engine keeps no record of it',
  logs: 'logs are kept by role, see `ratchet logs`',
  store: 'the run has one store: output_dir at the top',
  broadcast: 'weights reach the sampler through the store, as files that are named by their content',
  transport: 'rollouts reach the trainer through the store',
  checkpoints: 'a commit is the whole state of a run, and all of it comes back when the run goes on',
  records: 'rollouts are kept whole, in files of the run’s own form',
  wandb: 'Weights & Biases is fed from the committed metrics',
  monitor: 'the run can be looked at with `ratchet status`, `ratchet metrics` and `ratchet attach`',
  heartbeat: 'Temporal hears from every worker, and names those that fell silent',
  profile: 'it measures prime-rl’s own trainer',
  clean: 'a run never deletes what another left; `--fresh` starts over under a new name',
  retry: 'what fails is tried again as the workflow says',
  seed: 'examples are drawn from the run’s one seed',
  drawn: 'what is drawn is drawn from the run’s one seed',
  evaluated: 'a run that goes on has made the evaluations it had made',
  adapters: 'adapters are served as the trainer has them',
} as const;

export const port = (): z.ZodType => whole(1, 65_535);
/** Only the number of GPU ids matters here. */
export const gpuIds = () => z.array(z.int().min(0)).min(1).meta({ expected: 'a list of GPU ids such as [0, 1]' });
const temperature = () => z.number().min(0).max(2).meta({ expected: 'a number from 0 to 2' });
const variables = () => z.record(z.string(), z.string()).meta({ expected: 'a table of texts' });
const workers = () => z.union([whole(1), choice('auto')]).meta({ expected: 'an integer ≥ 1, or "auto"' });
const maybe = (field: Field): Field => ({ ...field, isNullable: true });
const processes = (schema: z.ZodType): Field => maybe(ignored(why.processes, schema));
const speed = (schema: z.ZodType): Field => ignored(why.speed, schema);
const madeUp = 'training on made-up data';
/** Refused by name, with the alternative in a run here. */
const python = (what: string, place: string): Field =>
  refused(`${what} in Python; write it in TypeScript and name it in [ratchet.${place}] import`);
const bench = only(false, 'a bench trains on made-up data; see `npm run bench`', flag());
const centered = 'the advantage is the reward less the mean of its group';
const scored = 'without rewards there is nothing to learn from';
const asyncLevel = becomes('max_async_level', whole(0), { isShared: true });
const modelName = together('`model`', text(), { default: 'Qwen/Qwen3-0.6B' });
const teacher = together('`teacher`: `model`, `url`, `api_key_var` and `headers`', args());
const served = together('`inference.vllm`: further arguments as they are', args());
const metrics = (schema: z.ZodType): Field => ignored(why.monitor, schema);

/** Fields that the top, the trainer and the orchestrator share. Comes last. */
const common: Rows = {
  'model.name': modelName,
  'model.vlm?': refused('models that see; Ratchet trains on text'),
  ...all('tokenizer.name?', together('a warning where it is not the model’s', text())),
  'tokenizer.trust_remote_code?': ignored(why.modelCode, flag()),
  'tokenizer.chat_template?': becomes('tokenizer.chat_template'),
  env_vars: ignored('environment variables are set where the workers run', variables()),
  ...all('log.level? log.vf_level', ignored(why.logs, text())),
  ...all('log.file? log.json_logging log.log_data log.env_worker_logs', ignored(why.logs, flag())),
  'log.interval': ignored(why.logs, positive()),
  'log.ranks_filter': ignored(why.logs, z.array(z.int()).meta({ expected: 'a list of ranks' })),
  'ckpt.interval?': becomes('checkpoints.interval', whole(1), { isShared: true, default: 'the end alone' }),
  'ckpt.keep_last?': becomes('checkpoints.keep_last', whole(1), { isShared: true, default: 'all' }),
  'ckpt.keep_interval?': becomes('checkpoints.keep_interval', { isShared: true }),
  'ckpt.output_dir?': ignored('checkpoints are in the run’s store', text()),
  'ckpt.wait_for_weights_timeout?': ignored(why.checkpoints, whole(1)),
  'ckpt.skip_progress': ignored(why.checkpoints, flag()),
  'monitors.wandb.project?': becomes('wandb.project', text(), { isShared: true, default: 'prime-rl' }),
  'monitors.wandb.entity?': becomes('wandb.entity', { isShared: true }),
  'monitors.wandb.name?': becomes('wandb.name', { isShared: true }),
  'monitors.wandb.group?': becomes('wandb.group', { isShared: true }),
  'monitors.wandb.tags?': becomes('wandb.tags', { isShared: true }),
  'monitors.wandb.offline?': converted('wandb.mode', flag(), (isOff) => (isOff ? 'offline' : 'online'), {
    isShared: true,
  }),
  'monitors.wandb.shared?': ignored(why.wandb, flag()),
  'monitors.wandb.id?': ignored(why.wandb, text()),
  'monitors.wandb.log_extras?': ignored(why.wandb, args()),
  ...all('monitors.prime.name? monitors.prime.run_name? monitors.prime.base_url?', metrics(text())),
  ...all('monitors.prime.frontend_url? monitors.prime.team_id? monitors.prime.api_key_var?', metrics(text())),
  'monitors.prime.log_extras?': metrics(args()),
  'monitors.file.path': ignored('metrics are in the run’s folder, as metrics.jsonl', text()),
  'monitors.file.chunk_bytes': ignored(why.records, whole(1)),
  'monitors.file.compress': ignored(why.records, flag()),
  'monitors.file.float_decimals?': ignored(why.records, whole(0)),
  'weight_broadcast.type': ignored(why.broadcast, choice('filesystem', 'nccl', 'nixl')),
  ...all('weight_broadcast.host weight_broadcast.session_id', ignored(why.broadcast, text())),
  'weight_broadcast.port': ignored(why.broadcast, port()),
  ...all('weight_broadcast.timeout weight_broadcast.inference_world_size', ignored(why.broadcast, whole(1))),
  'weight_broadcast.quantize_in_weight_transfer': ignored(why.broadcast, flag()),
  'weight_broadcast.save_sharded': ignored(why.broadcast, flag()),
  'weight_broadcast.save_format': ignored(why.broadcast, choice('safetensors', 'torch')),
  'rollout_transport.type': ignored(why.transport, choice('filesystem', 'zmq')),
  'rollout_transport.host': ignored(why.transport, text()),
  'rollout_transport.port': ignored(why.transport, port()),
  'rollout_transport.hwm': ignored(why.transport, whole(0)),
  'max_steps?': becomes('max_steps', whole(1), { isShared: true, default: '100' }),
};

export const top: Rows = {
  'run.name?': together('`name`', text()),
  'run.dir?': ignored('a run’s folder is called after the run', text()),
  output_dir: converted('store.uri', text(), (folder) => `file:${folder}`, { default: 'outputs' }),
  clean: ignored(why.clean, flag()),
  'resume.step?': becomes('resume.step', { default: 'the latest' }),
  'resume.dir?': refused('checkpoints of other runs; `ratchet fork` begins a run at one'),
  'seq_len?': together('`seq_len`', whole(1)),
  'deployment.type': together('read with the numbers beside it', choice('single_node', 'multi_node')),
  'deployment.gpus_per_node': together('GPUs of a node', whole(1), { default: '8' }),
  'deployment.num_train_gpus': together('`trainer.gpus`', whole(1), { default: '1' }),
  'deployment.num_infer_gpus': together('`inference.gpus`', whole(0), { default: '1' }),
  'deployment.num_train_nodes': together('`trainer.nodes`, with `trainer.gpus` GPUs each', whole(1)),
  'deployment.num_infer_nodes?': together('`inference.gpus`: nodes times GPUs of a node', whole(0)),
  'deployment.num_infer_replicas': together('`inference.gpus`, times this', whole(1), { default: '1' }),
  'deployment.nodes_per_fsdp_group': processes(whole(1)),
  'deployment.orchestrator_on_inference': processes(flag()),
  inference_gpu_ids: together('`inference.gpus`: how many', gpuIds()),
  trainer_gpu_ids: together('`trainer.gpus`: how many', gpuIds()),
  ...all('deployment.num_teacher_gpus? deployment.num_teacher_nodes?', refused(why.teacherServer)),
  ...all('teacher_gpu_ids? teacher_inference?', refused(why.teacherServer)),
  toml_files: refused('name them before this file, which is laid over them: npx ratchet-rl rl @ FILE @ THIS'),
  slurm: processes(args()),
  dry_run: ignored('a run file does not say whether it is run; `--dry-run` does', flag()),
  'max_async_level?': asyncLevel,
  bench,
  ...hostedKeys,
  ...common,
};

/** What prime-rl’s own trainer takes where a run asks for it. */
export const toPrimeRl = (path: string) => ({ trainer: 'prime-rl', path }) as const;
/** Settings of the model’s table that only that trainer knows: it gets them as they are written. */
export const toTrainer = (names: string, schema: z.ZodType): Rows =>
  Object.fromEntries(
    wordsOf(names).map((name) => [
      name,
      passed(toPrimeRl(`trainer.prime_rl.model.${name.replace('?', '')}`), why.speed, schema),
    ]),
  );

export const trained: Rows = {
  seq_len: together('`seq_len`', whole(1), { default: '2048' }),
  attn: becomes('trainer.attn', choice('flash_attention_2', 'flash_attention_3', 'flash_attention_4', 'auto', 'sdpa')),
  trust_remote_code: ignored(why.modelCode, flag()),
  ...into('trainer', 'fsdp_cpu_offload optim_cpu_offload optimization_dtype reduce_dtype'),
  ...toTrainer('dp_replicate tp', whole(1)),
  cp: passed(toPrimeRl('trainer.cp'), why.speed, whole(1)),
  ...toTrainer('impl', choice('auto', 'hf', 'custom')),
  ep: passed({ ...toPrimeRl('trainer.ep'), unless: 'auto' }, why.speed, workers()),
  'ac.freq': together('`trainer.ac_freq`', whole(0), { default: '1' }),
  ...toTrainer('ac.mode', choice('full', 'selective', 'full_moe', 'projections', 'attention', 'matmul')),
  ...toTrainer('ac.layer_modes?', texts()),
  ...toTrainer('ac.recompute_engram', flag()),
  ...toTrainer('pp pp_stages_per_rank', whole(1)),
  ...toTrainer('pp_transport_ctas? pp_gemm_sms?', whole(1)),
  ...toTrainer('pp_schedule pp_transport', text()),
  ...toTrainer('pp_warmup_step', z.array(whole(1)).meta({ expected: 'a list of integers ≥ 1' })),
  ...toTrainer('pp_layers_per_stage?', z.array(anyNumber()).meta({ expected: 'a list of numbers' })),
  ...toTrainer('pp_activation_offload?', args()),
  freeze_engram_tables: ignored('models here have no engram tables', flag()),
  ...toTrainer('ac.targets?', texts()),
  'compile?': converted('trainer.compile', args(), () => true),
  ...toTrainer('ac_offloading?', args()),
  ...toTrainer('reshard_after_forward fusions.shard_fused_on_dim1', flag()),
  ...toTrainer('fusions.enabled', texts()),
  ...toTrainer('moe_use_grouped_mm moe_fused_kernel fp8', flag()),
  ...toTrainer('deepep_num_sms deepep_token_chunk_size?', whole(1)),
  ...toTrainer('full_offload', z.union([flag(), args()]).meta({ expected: 'true, false or a table' })),
  ...toTrainer('quantization? index_cache?', args()),
  ...toTrainer('ep_comm_backend', choice('torch', 'deepep')),
  ...toTrainer('cp_style', choice('ring', 'ulysses')),
  ...toTrainer('moe_router_dtype', choice('bfloat16', 'float32', 'auto')),
  ...toTrainer('moe.compute moe.dispatch', args()),
  ...toTrainer('moe.reduce_local_expert_grads_once', flag()),
  ...toTrainer(
    'fused_lm_head_token_chunk_size',
    z.union([whole(1), choice('auto', 'disabled')]).meta({ expected: 'an integer ≥ 1, or "disabled"' }),
  ),
  conversion_dir: processes(text()),
  freeze_moe_router: becomes('trainer.freeze_moe_router', { default: 'false' }),
  'debug.force_balanced_routing': only(false, 'each token goes to the experts that its router picks', flag()),
  'lora.rank': becomes('lora.r'),
  'lora.alpha': becomes('lora.alpha', { default: '32' }),
  'lora.dropout': becomes('lora.dropout'),
  'lora.target_modules': together('`lora.target_modules`', texts()),
  'lora.modules_to_save': together('`lora.modules_to_save`', texts()),
  'debug.num_layers?': refused('training a part of a model; name a smaller model'),
  'debug.random_init': only(false, 'weights are those of the model; for others name a preset', flag()),
};

const atLeastZero = () => z.number().min(0).meta({ expected: 'a number ≥ 0' });
export const trainer: Rows = {
  ...under('model', trained),
  'data.fake?': refused(madeUp),
  'loss.type': together(
    '`trainer.loss.type`: ipo; of "default" dppo, or ipo in March 2026; of "icepop" importance_sampling, of "ppo" grpo, of "cispo" cispo; for "sft" `loss`',
    choice('ipo', 'icepop', 'ppo', 'cispo', 'default', 'custom', 'sft'),
    { default: 'ipo' },
  ),
  'loss.eps': together('`trainer.loss.mask_low` and `mask_high`', atLeastZero(), { default: '0.3' }),
  'loss.max_importance_ratio': together(
    '`trainer.loss.max_ratio`',
    z.number().min(1).meta({ expected: 'a number ≥ 1' }),
    { default: '10000' },
  ),
  'loss.ratio_low': together('the lower bound of the ratio, or of its mask', atLeastZero()),
  'loss.ratio_high': together('the upper bound of the ratio, or of its mask', positive()),
  'loss.score_centering': only(
    false,
    'it needs the probabilities of all tokens that a sampler could have picked, which are not kept',
    flag(),
  ),
  'loss.dppo_mask_low': together('`trainer.loss.mask_low`', atLeastZero(), { default: '0.2' }),
  'loss.dppo_mask_high': together('`trainer.loss.mask_high`', atLeastZero(), { default: '0.2' }),
  'loss.ipo_mask_low': together('`trainer.loss.mask_low`', atLeastZero(), { default: '0.2' }),
  'loss.ipo_mask_high': together('`trainer.loss.mask_high`', atLeastZero(), { default: '0.2' }),
  'loss.ipo_threshold': together('`trainer.loss.mask_low` and `mask_high`', atLeastZero(), { default: '0.1' }),
  'loss.adv_tau': becomes('trainer.loss.adv_tau', { default: '1' }),
  'loss.kl_tau': becomes('trainer.loss.kl_tau', { default: '0' }),
  'loss.teacher_tau': becomes('trainer.loss.teacher_tau', { default: '0' }),
  ...all('loss.import_path loss.kwargs', python('a loss', 'trainer.loss')),
  'optim.type': optimizerType(choice('adamw', 'sgd', 'muon', 'sign_sgd')),
  'optim.lr': becomes('learning_rate'),
  'optim.weight_decay': converted(
    'trainer.weight_decay',
    z.union([atLeastZero(), z.literal('auto')]).meta({ expected: 'a number ≥ 0, or "auto"' }),
    (decay) => (decay === 'auto' ? undefined : decay),
    { default: '"auto": 0, in sft 0.01' },
  ),
  'optim.max_norm': converted(
    'trainer.max_grad_norm',
    z.union([atLeastZero(), z.literal('None')]).meta({ expected: 'a number ≥ 0, or "None"' }),
    (norm) => (norm === 'None' ? Number.MAX_VALUE : norm),
    { default: '1' },
  ),
  ...optimizerRows,
  'scheduler.type': together('`trainer.schedule`', choice('constant', 'linear', 'cosine')),
  'scheduler.warmup_steps': together('`trainer.warmup_steps`', whole(0), { default: '10' }),
  'scheduler.decay_steps': together('`trainer.decay_steps`', whole(0), { default: '10' }),
  'scheduler.min_lr': together('`trainer.min_lr_ratio`', atLeastZero(), { default: '0' }),
  ...all('ckpt.skip_scheduler ckpt.skip_dataloader ckpt.skip_optimizer', ignored(why.checkpoints, flag())),
  ...all('ckpt.skip_gather_master_weights ckpt.weights_only', ignored(why.checkpoints, flag())),
  'ckpt.weights?': ignored('weights are exported with every checkpoint', args()),
  output_dir: ignored(why.store, text()),
  matmul_precision: speed(choice('highest', 'high', 'medium')),
  max_async_level: asyncLevel,
  enable_router_replay: ignored(why.experts, flag()),
  ...all('memory_profiler_path? trace_path?', ignored(why.profile, text())),
  'gc.interval': speed(whole(1)),
  dist_timeout_seconds: becomes('trainer.rank_timeout', whole(1), { default: '600' }),
  'heartbeat.url': ignored(why.heartbeat, text()),
  'metrics_server.port': metrics(port()),
  'metrics_server.host': metrics(text()),
  enable_token_export: ignored('rollouts are stored with their tokens', flag()),
  'bench?': refused(`${madeUp}; see \`npm run bench\``),
  max_concurrent_runs: ignored('the trainer works for one run at a time', whole(1)),
  ...common,
};

/** Fields of a source of rollouts or evaluations. The last ones were on verifiers' environment before it had agents. */
const source = (table: string): Rows => ({
  env: together(
    `\`${table}\`: \`taskset.id\` and the taskset's further keys as arguments, the rest as \`agent\``,
    args(),
  ),
  ...into(table, 'id args name? system_prompt'),
  'timeout?': together(
    `\`${table}.timeout\`: seconds, or a table of stages, whose \`rollout\` it is`,
    z.union([args(), positive()]).meta({ expected: 'a number > 0, or a table of stages' }),
  ),
  ...all('taskset harness retries', together('as `env.taskset`, `env.agent.harness` and `env.agent.retries`', args())),
  ...all('multiplex pool', processes(z.union([args(), whole(1)]).meta({ expected: 'a table, or an integer ≥ 1' }))),
  serve: processes(args()),
  legacy: ignored('environments are told apart by themselves', args()),
  address: processes(text()),
  num_workers: processes(workers()),
  max_retries: ignored(why.retry, whole(0)),
  state_columns: ignored('a rollout is stored with all it has', texts()),
  extra_env_kwargs: refused(
    'attributes that are set on a loaded environment; write what load_environment takes into args',
  ),
  max_total_completion_tokens: converted(`${table}.max_output_tokens`, z.int().min(-1), (most) =>
    most > 0 ? most : undefined,
  ),
});
const sampling: Rows = {
  'temperature?': together('`sampling.temperature`', temperature(), { default: '1' }),
  top_p: together('`sampling.top_p`', positive(), { default: '1' }),
  'top_k?': together('`sampling.top_k`', whole(1)),
  'max_completion_tokens?': together('`sampling.max_tokens`', whole(1), { default: 'seq_len' }),
  extra_body: together('`sampling`, or refused', args()),
};
const evalSampling = (table: string): Rows => ({
  'temperature?': becomes(`${table}.temperature`, temperature()),
  'max_completion_tokens?': becomes(`${table}.max_tokens`),
  ...into(table, 'top_p? top_k? min_p? repetition_penalty? min_tokens? reasoning_effort?'),
  'seed?': ignored(why.drawn, whole(0)),
  'extra_body?': together(`\`${table}\`, or refused`, args()),
});
const rolloutFilters = filters(
  choice('gibberish', 'repetition', 'zero_advantage'),
  'a list of tables, each with type = "gibberish", "repetition" or "zero_advantage"',
);

/** Beside a source's environment since autumn 2026, in its curriculum before. */
const sampler: Rows = {
  type: together('pools or none', choice('standard', 'difficulty_pool')),
  seed: ignored(why.seed, whole(0)),
  pools: together('`env[].buffer`', args()),
};
/** The selection of a taskset's tasks. */
const selectOf = (what: 'training' | 'evaluations'): Field =>
  together(
    what === 'training'
      ? 'refused unless it is empty'
      : '`limit` is `num_examples`; the rest is refused unless it is empty',
    args(),
  );

const train: Rows = {
  ...under('source[]', {
    ...source('env[]'),
    'ratio?': becomes('env[].weight'),
    group_size: together('`rollouts_per_example`, or of this environment', whole(1)),
    ...under('sampling', sampling),
    'algo?': together(
      '`env.loss`, `env.advantage` and `env.echo`, where sources differ; teachers and length penalties that differ are refused, and sft beside others',
      args(),
    ),
    'advantage?': together('refused unless it is the default', args()),
    ...under('sampler', sampler),
    ...under('curriculum.sampler', sampler),
    select: selectOf('training'),
    min_abs_advantage: only(0, 'what has an advantage is trained, however small it is', atLeastZero()),
    'curriculum.gates': together(
      'advantage_range from 0 to 0: `difficulty_filter.keep_equal` = false; others are refused',
      args(),
    ),
  }),
  ...under('sampling', {
    ...sampling,
    ...into('sampling', 'temp_scheduler.type temp_scheduler.start_temperature temp_scheduler.end_temperature'),
    ...into('sampling', 'temp_scheduler.total_steps? repetition_penalty min_tokens seed?'),
  }),
  filter_zero_advantages: together('`post_batch_filters`: zero_advantage, unless it is false', flag(), {
    default: 'true',
  }),
  group_size: together('`rollouts_per_example`', whole(1), { default: '1' }),
  algo: together('as `orchestrator.algo`', args()),
  select: selectOf('training'),
  env: together('what each source’s `env` says beside it', args()),
  max_retries: ignored(why.retry, whole(0)),
  num_workers: processes(workers()),
};
export const evaluation: Rows = {
  ...under('source[]', {
    ...source('eval.env[]'),
    'ratio?': ignored('every evaluation is of all its environments', positive()),
    'group_size?': becomes('eval.env[].rollouts_per_example'),
    ...into('eval.env[]', 'num_examples? interval skip_first'),
    ...under('sampling', evalSampling('eval.env[].sampling')),
    select: selectOf('evaluations'),
  }),
  select: selectOf('evaluations'),
  env: together('what each source’s `env` says beside it', args()),
  ...under('sampling', evalSampling('eval.sampling')),
  group_size: becomes('eval.rollouts_per_example'),
  ...into('eval', 'num_examples interval skip_first_step eval_base_model'),
  ...all('retrigger_on_resume skip_eval_on_resume', ignored(why.evaluated, flag())),
  cancel_inflight_rollouts_on_eval: ignored('evaluations run beside the training', flag()),
  max_retries: ignored(why.retry, whole(0)),
  num_workers: processes(workers()),
};
export const client: Rows = {
  timeout: becomes('inference.timeout', whole(1)),
  base_url: becomes('inference.url', serverUrls()),
  ...into('inference', 'api_key_var headers'),
  headers_from_env: becomes('inference.headers_from_env', headersFromEnv()),
  connect_timeout: ignored(why.client, positive()),
  'admin_base_url?': ignored(why.client, texts()),
  'router_url?': ignored(why.client, text()),
  extra_headers_from_state: ignored(why.client, variables()),
  'elastic?': ignored(why.client, args()),
  ...all('wait_for_ready_timeout dp_rank_count', processes(whole(1))),
  skip_model_check: ignored('it is about how prime-rl starts', flag()),
};

/** Fields until v0.8. */
const before: Rows = {
  'optim.lr': ignored('it is of several runs in one trainer; the learning rate is trainer.optim.lr', atLeastZero()),
  ...under('buffer', {
    ...into('buffer', 'online_difficulty_filtering easy_threshold? hard_threshold?'),
    'seed?': ignored(why.seed, whole(0)),
    'env_ratios?': together('`env[].weight`, in turn', z.array(anyNumber()).meta({ expected: 'a list of numbers' })),
    ...all(
      'easy_fraction hard_fraction',
      together('0: no example of these pools is drawn', fraction(), { default: '0' }),
    ),
    hash_keys: ignored('an example is known by its place in its environment', texts()),
    skip_verification: only(false, scored, flag()),
  }),
  'advantage.type': only('default', centered, choice('default', 'custom')),
  ...all('advantage.import_path advantage.kwargs', python('an advantage', 'trainer.advantage')),
  ...all('advantage.length_weighted_mean advantage.length_weighted_baseline', only(false, centered, flag())),
  ...all('advantage.length_shaping_alpha? advantage.length_penalty?', refused('advantages that count lengths')),
  // v0.5: flagged rollouts lost their loss and still filled the batch.
  ...all('filters post_batch_filters', becomes('post_batch_filters', rolloutFilters)),
  pre_batch_filters: becomes('pre_batch_filters', rolloutFilters),
  training_mode: together('`loss`', choice('rl', 'opd', 'sft')),
  ...all('teacher? teacher_model? teacher_rollout_model?', teacher),
  use_sft_loss: together('`loss` = "sft"', flag()),
  use_token_client: ignored('the policy server answers with tokens', flag()),
  env_install_prerelease: ignored('`ratchet env install` installs environments', flag()),
  'verification.enabled': only(true, scored, flag()),
  ...all('val.num_examples val.rollouts_per_example val.interval', ignored(noValidation, whole(1))),
  'max_concurrent?': becomes('max_concurrent'),
  workers_per_env: processes(whole(1)),
  max_env_worker_restarts: processes(z.int().min(-1).meta({ expected: 'an integer ≥ 0, or -1' })),
  mask_env_responses: only(true, 'what an environment says is not trained by the advantage of a rollout', flag()),
  reload_weights_on_start: ignored(why.broadcast, flag()),
  trajectory_strategy: becomes('trajectory_strategy'),
  'seed?': becomes('seed', { default: '42' }),
  bench,
};

const orchestrator: Rows = {
  algo: together(
    '`loss` and `teacher`; of max_rl the advantage of that name, of echo `trainer.echo`, of rae and hierarchical_grpo the advantage of that name',
    args(),
    {
      default: '{ type = "grpo" }',
    },
  ),
  'model.trust_remote_code': ignored(why.modelCode, flag()),
  'model.lora.name?': ignored('adapters are served under the name of the policy', text()),
  'model.lora.rank?': together('as trainer.model.lora.rank, or refused', whole(1)),
  'model.lora.alpha?': together('as trainer.model.lora.alpha, or refused', atLeastZero()),
  ...under('model.client', client),
  ...under('train', train),
  renderer: together(
    '`sampling.chat_template_kwargs`: enable_thinking, reasoning_effort and clear_thinking, of name = "default" all variables; the rest has no effect',
    args(),
  ),
  ...under('eval', evaluation),
  collect_inference_metrics: metrics(flag()),
  'inference_metrics_roles?': metrics(texts()),
  'ckpt.skip_buffer': ignored(why.checkpoints, flag()),
  output_dir: ignored(why.store, text()),
  'tasks_per_minute?': becomes('tasks_per_minute'),
  env_server_base_port: processes(port()),
  'batch_size?': together('`batch_size`', whole(1), { default: '128' }),
  constant_trainer_batch_size: together(
    '`pre_batch_filters`: zero_advantage, so that other groups take the place of what has none; false is `post_batch_filters`',
    flag(),
    { default: 'true' },
  ),
  'token_batch_size?': together('`token_batch_size`, in whole groups', whole(1)),
  'concurrency.max_inflight': converted(
    'max_concurrent',
    z.union([whole(1), z.literal('None')]).meta({ expected: 'an integer ≥ 1, or "None"' }),
    (most) => (most === 'None' ? undefined : most),
    { default: '1024' },
  ),
  ...all('concurrency.initial_inflight concurrency.min_inflight pool_size num_train_workers', processes(whole(1))),
  use_renderer: ignored('messages are written out with the model’s chat template', flag()),
  'oversampling_factor?': becomes('oversampling_factor', anyNumber()),
  group_size: together('`rollouts_per_example`', whole(1), { default: '1' }),
  seq_len: together('`seq_len`', whole(1), { default: '2048' }),
  pad_to_multiple_of: speed(whole(1)),
  max_off_policy_steps: becomes('max_off_policy_steps', { default: '8' }),
  max_async_level: asyncLevel,
  strict_async_level: ignored('rollouts are as far ahead as they get, never further', flag()),
  'heartbeat.url': ignored(why.heartbeat, text()),
  ...before,
  ...common,
};

/** vLLM's own names; unknown arguments are passed on unchanged. */
const vllm = (names: string, schema: z.ZodType): Record<string, Field> =>
  Object.assign({}, ...names.split(' ').map((name) => ({ [name]: maybe(becomes(`inference.vllm.${name}`, schema)) })));
const vllmArguments: Rows = {
  model: together('`model`, with a warning where names differ', text()),
  'max_model_len?': together('`inference.vllm.max_model_len`', whole(1)),
  ...vllm('dtype', choice('auto', 'float16', 'bfloat16', 'float32')),
  ...vllm('enforce_eager trust_remote_code enable_prefix_caching enable_expert_parallel enable_eplb', flag()),
  ...vllm('enable_dbo enable_return_routed_experts', flag()),
  ...vllm('chat_template tool_call_parser reasoning_parser quantization all2all_backend', text()),
  ...vllm('rope_scaling', z.union([args(), text()]).meta({ expected: 'a table, or a text' })),
  ...vllm('tensor_parallel_size data_parallel_size data_parallel_size_local', whole(1)),
  ...vllm('data_parallel_rpc_port', port()),
  ...vllm('api_server_count', whole(0)),
  ...vllm('gpu_memory_utilization', fraction()),
  seed: ignored(why.drawn, whole(0)),
  'enable_lora?': ignored(why.adapters, flag()),
  ...all('max_loras? max_cpu_loras? max_lora_rank?', ignored(why.adapters, whole(1))),
  'lora_target_modules?': ignored(why.adapters, texts()),
};

export const inference: Rows = {
  'server.host': processes(text()),
  'server.port': becomes('inference.port', port()),
  'server.liveness_timeout_seconds': processes(positive()),
  ...all('router kv_cache_offload deployment slurm', processes(args())),
  backend_port: processes(port()),
  ...all('vllm vllm_extra', served),
  ...under('vllm', vllmArguments),
  use_pd_kv_transfer: processes(flag()),
  enable_return_sampling_mask: ignored(why.replay, flag()),
  ...all('use_deep_gemm enable_fp32_lm_head enable_fp32_router_logits', speed(flag())),
  output_dir: ignored(why.store, text()),
  dry_run: top['dry_run']!,
  ...Object.fromEntries(
    Object.entries(common).filter(([name]) => /^(?:log\.|env_vars|weight_broadcast\.type)/.test(name)),
  ),
};

export const primeRlFields: Readonly<Record<string, Field>> = {
  ...under('', top),
  ...under('trainer', trainer),
  ...under('orchestrator', orchestrator),
  ...under('inference', inference),
};

/** Tables that turn something on, and may be "None". */
export const primeRlTables = `
  ckpt inference model monitors.file monitors.prime monitors.wandb resume rollout_transport tokenizer wandb weight_broadcast
  orchestrator.ckpt orchestrator.eval orchestrator.heartbeat orchestrator.model.lora orchestrator.monitors.file
  orchestrator.monitors.prime orchestrator.monitors.wandb orchestrator.prime_monitor orchestrator.train.sampling.temp_scheduler
  orchestrator.train.source[].curriculum orchestrator.val orchestrator.wandb trainer.ckpt trainer.gc trainer.heartbeat
  trainer.metrics_server trainer.model.lora trainer.monitors.file trainer.monitors.wandb trainer.wandb`;
