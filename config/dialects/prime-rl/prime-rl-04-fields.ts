import { z } from 'zod';
import { anyNumber, atLeastZero, choice, flag, text, whole } from '../../toml/values.ts';
import { becomes, type Field, ignored, only, passed, refused, together } from '../dialect.ts';
import { all, into, type Rows, same, under, wordsOf } from '../ours.ts';
import { optimizerType } from './prime-rl-optimizer.ts';
import { gpuIds, port, primeRlFields, toPrimeRl, toTrainer, why } from './prime-rl-fields.ts';
import { primeRlRenames } from './prime-rl-renames.ts';
import { fieldsWithOldNames } from '../renames.ts';

/** Every field of `rl`'s files in prime-rl v0.4.0 (2026-02), and those of the months before that it dropped. */

const log = 'level vf_level file env_worker_logs log_data json_logging';
const transport = 'type host port hwm';

/**
 * Fields by table, in order, that are unchanged since, or vLLM's under their names of that time. A `!` marks fields
 * that accepted no null.
 */
const asNow: Readonly<Record<string, string>> = {
  '': `teacher_gpu_ids teacher_inference output_dir clean clean_output_dir bench dry_run slurm max_steps max_model_len seq_len
    max_async_level`,
  // prime-rl's main branch had these in the three weeks after 0.4.0.
  deployment: 'type gpus_per_node num_train_gpus num_infer_gpus num_train_nodes num_infer_nodes num_infer_replicas',
  model: 'name',
  log,
  ckpt: 'interval keep_last keep_interval',
  wandb: 'project name offline',
  'trainer.model': `name seq_len fsdp_cpu_offload optim_cpu_offload trust_remote_code dp_replicate tp cp impl
    optimization_dtype reduce_dtype reshard_after_forward moe_use_grouped_mm compile ac_offloading`,
  'trainer.model.lora': 'rank alpha dropout target_modules modules_to_save',
  'trainer.model.debug': 'num_layers random_init',
  'trainer.tokenizer': 'name trust_remote_code chat_template',
  'trainer.loss': 'import_path kwargs adv_tau teacher_tau',
  'trainer.optim': 'lr weight_decay betas1 betas2 nesterov momentum',
  'trainer.scheduler': 'type warmup_steps decay_steps min_lr',
  'trainer.ckpt': 'interval keep_last keep_interval skip_progress skip_scheduler skip_dataloader',
  'trainer.weight_broadcast': 'save_sharded save_format port timeout inference_world_size',
  'trainer.rollout_transport': transport,
  'trainer.log': log,
  'trainer.wandb': 'project name offline id',
  'trainer.heartbeat': 'url',
  'trainer.metrics_server': 'port host',
  trainer: `output_dir max_steps max_async_level memory_profiler_path trace_path dist_timeout_seconds! max_concurrent_runs`,
  'orchestrator.client': 'timeout base_url api_key_var headers skip_model_check',
  'orchestrator.model': 'name trust_remote_code',
  'orchestrator.model.lora': 'name rank alpha!',
  'orchestrator.optim': 'lr',
  'orchestrator.sampling': 'repetition_penalty min_tokens seed extra_body',
  'orchestrator.sampling.temp_scheduler': 'type start_temperature end_temperature total_steps',
  'orchestrator.env[]': 'args name system_prompt',
  'orchestrator.eval': `interval num_examples rollouts_per_example eval_base_model skip_eval_on_resume skip_eval_on_restart`,
  'orchestrator.eval.env[]': 'args name system_prompt num_examples rollouts_per_example skip_first',
  'orchestrator.eval.sampling': `repetition_penalty top_p top_k min_p max_tokens min_tokens reasoning_effort seed
    extra_body!`,
  'orchestrator.buffer': `online_difficulty_filtering seed env_ratios easy_threshold hard_threshold easy_fraction
    hard_fraction hash_keys skip_verification`,
  'orchestrator.advantage': 'type length_weighted_mean import_path kwargs',
  'orchestrator.log': log,
  'orchestrator.wandb': 'project name offline id',
  'orchestrator.prime_monitor': 'base_url! api_key_var!',
  'orchestrator.ckpt': 'interval keep_last keep_interval wait_for_weights_timeout skip_progress skip_buffer',
  'orchestrator.val': 'num_examples rollouts_per_example interval',
  'orchestrator.weight_broadcast': 'port timeout',
  'orchestrator.rollout_transport': transport,
  'orchestrator.heartbeat': 'url',
  orchestrator: `teacher_model reload_weights_on_start trajectory_strategy output_dir max_concurrent tasks_per_minute
    workers_per_env! max_env_worker_restarts! rollouts_per_example seq_len mask_env_responses num_train_workers! max_steps
    max_off_policy_steps max_async_level strict_async_level bench seed filters max_inflight_rollouts use_token_client`,
  'inference.server': 'host port',
  'inference.model': `name dtype! max_model_len enforce_eager! trust_remote_code! enable_auto_tool_choice tool_call_parser! reasoning_parser
    rope_scaling`,
  'inference.parallel': 'tp! dp!',
  inference: 'enable_lora! max_loras max_cpu_loras max_lora_rank gpu_memory_utilization! api_server_count seed',
};

function fieldsAsNow(): Record<string, Field> {
  const now = fieldsWithOldNames({ fields: primeRlFields, renames: primeRlRenames });
  const known = { ...now, ...under('', otherwise) };
  const fields = Object.entries(asNow).flatMap(([table, keys]) =>
    wordsOf(keys).map((key): [string, Field] => {
      const path = `${table === '' ? '' : `${table}.`}${key.replace('!', '')}`;
      return [path, key.endsWith('!') ? { ...known[path]!, isNullable: false } : known[path]!];
    }),
  );
  return Object.fromEntries(fields);
}

const engine = 'the embedded engine computes −ρ·A over the tokens that the token mask keeps';
const saved = 'evaluations are kept with the run';
const texts = (reason: string): Field => ignored(reason, z.string().meta({ expected: 'a text' }));

const otherwise: Rows = {
  inference_gpu_ids: together('`inference.gpu_ids`, and `inference.gpus`: how many', gpuIds(), { default: '[0]' }),
  trainer_gpu_ids: together('`trainer.gpu_ids`, and `trainer.gpus`: how many', gpuIds(), { default: '[1]' }),
  // A mere number, in the months before: prime-rl gave the first GPUs to inference.
  trainer_gpus: together('`trainer.gpus`', whole(1), { default: '1' }),
  inference_gpus: together('`inference.gpus`', whole(0), { default: '1' }),
  ...all(
    'ckpt.resume_step? trainer.ckpt.resume_step? orchestrator.ckpt.resume_step?',
    becomes('ckpt.resume_step', { isShared: true }),
  ),
  'resume.step': becomes('resume.step'),
  ...all(
    'weight_broadcast.type trainer.weight_broadcast.type orchestrator.weight_broadcast.type inference.weight_broadcast.type',
    ignored(why.broadcast, choice('filesystem', 'nccl')),
  ),
  ...all('trainer.weight_broadcast.host orchestrator.weight_broadcast.host', texts(why.broadcast)),
  ...under('trainer', {
    'model.attn': becomes(
      'trainer.attn',
      choice('sdpa', 'flash_attention_2', 'flash_attention_3', 'flash_attention_4', 'fa4'),
    ),
    // In the months before, Liger's kernels were an implementation.
    ...under('model', toTrainer('impl', choice('auto', 'hf', 'custom', 'liger_kernel'))),
    'weight_broadcast.adapter_only': ignored(why.adapters, flag()),
    'model.ac.freq': together('`trainer.ac_freq`', whole(1), { default: '1' }),
    'model.ep': passed(toPrimeRl('trainer.ep'), why.speed, whole(1)),
    ...under(
      'model',
      toTrainer(
        'fused_lm_head_chunk_size',
        z.union([whole(512), choice('auto', 'disabled')]).meta({ expected: 'an integer ≥ 512, "auto" or "disabled"' }),
      ),
    ),
    ...all('data.fake.batch_size data.fake.generate_samples', refused('training on made-up data')),
    'loss.type': only(
      'default',
      'a loss of your own goes into [ratchet.trainer.loss] import',
      choice('default', 'custom'),
    ),
    'loss.ratio_type': only('token', engine, choice('token', 'sequence')),
    'loss.token_mask_low': becomes('trainer.loss.mask_low', { default: '0.125' }),
    'loss.token_mask_high': becomes('trainer.loss.mask_high', { default: '8' }),
    'loss.sequence_clip_high': ignored('it is read with ratio_type = "sequence" alone', atLeastZero()),
    'loss.geo_mask_low': together('`trainer.correction.geometric_mask`', atLeastZero(), { default: '0.1' }),
    'loss.geo_mask_high': together('the same', atLeastZero(), { default: '10' }),
    'loss.sequence_mask_low': together('`trainer.correction.extreme_mask`', atLeastZero(), { default: '0' }),
    'loss.sequence_mask_high': together('the same', atLeastZero(), { default: '100' }),
    'loss.kl_tau': only(0, engine, atLeastZero()),
    'optim.type': optimizerType(choice('adamw', 'sgd', 'muon')),
    'optim.max_norm': becomes('trainer.max_grad_norm'),
    ...all(
      'ckpt.weights.save_sharded ckpt.weights.save_adapter_separately',
      ignored('weights and adapters are exported with every checkpoint', flag()),
    ),
    'ckpt.weights.save_format': ignored('weights are exported as safetensors', choice('safetensors', 'torch')),
    'bench.output_json': refused('training on made-up data; see `npm run bench`'),
  }),
  ...under('orchestrator', {
    ...under('client.elastic', {
      hostname: ignored(why.client, text()),
      port: ignored(why.client, port()),
      sync_interval: ignored(why.client, atLeastZero()),
    }),
    'sampling.temperature?': becomes('sampling.temperature'),
    'sampling.max_tokens?': becomes('sampling.max_tokens', { default: 'seq_len' }),
    // The documentation of the months before has them here; 0.4 itself reads them in extra_body.
    ...under('sampling', into('sampling', 'top_p? top_k? min_p?')),
    'env[].id': becomes('env[].id', { default: 'reverse-text' }),
    'env[].address?': ignored(why.processes, text()),
    'eval.env[].id': becomes('eval.env[].id', { default: 'reverse-text' }),
    'eval.sampling.temperature?': becomes('eval.sampling.temperature'),
    'eval.reasoning_field': ignored('it is about how evaluations are saved', text()),
    'eval.per_rollout': ignored('it is about progress bars alone', flag()),
    ...under('eval.save', {
      ...all('disk.path? hf.dataset_name? hf.dataset_subset? hf.dataset_split?', ignored(saved, text())),
      ...all('hf.private env_hub stream', ignored(saved, flag())),
    }),
    'eval.retry.max_attempts': ignored(why.retry, whole(1)),
    ...all('eval.retry.wait_multiplier eval.retry.wait_min eval.retry.wait_max', ignored(why.retry, atLeastZero())),
    'eval.retry.reraise': ignored(why.retry, flag()),
    ...all(
      'wandb.log_extras.samples wandb.log_extras.distributions prime_monitor.log_extras.samples prime_monitor.log_extras.distributions',
      ignored(why.wandb, flag()),
    ),
    ...all('wandb.log_extras.interval prime_monitor.log_extras.interval', ignored(why.wandb, whole(1))),
    // Fields of November 2025, before the buffer was a single table.
    environment: refused('write [[orchestrator.env]] with the same id and args, which took its place'),
    env_mix: refused('write its probabilities into orchestrator.buffer.env_ratios, which took its place'),
    'buffer.type': refused(
      'leave out "simple"; for "online-difficulty" write online_difficulty_filtering = true, for "difficulty-pool" easy_threshold and hard_threshold, which took its place',
    ),
    'buffer.oversampling_factor': refused('write it into [orchestrator], beside batch_size: it moved there'),
    'buffer.easy_border': refused('write easy_threshold, which took its place'),
    'buffer.hard_border': refused('write hard_threshold, which took its place'),
    ...all(
      'buffer.filter_min_threshold buffer.filter_max_threshold',
      refused('write online_difficulty_filtering = true, which took its place'),
    ),
    batch_size: becomes('batch_size'),
    oversampling_factor: becomes('oversampling_factor', anyNumber(), { default: '1' }),
    ...same('', 'mask_truncated_completions zero_truncated_completions'),
  }),
  'inference.model.enable_auto_tool_choice': becomes('inference.vllm.enable_auto_tool_choice', flag()),
  'inference.api_server_count': becomes('inference.vllm.api_server_count', whole(1)),
};

export const primeRl04Fields: Readonly<Record<string, Field>> = { ...fieldsAsNow(), ...under('', otherwise) };

/** Tables that turn something on, and may be "None". */
export const primeRl04Tables = `
  ckpt inference model resume wandb weight_broadcast
  orchestrator.ckpt orchestrator.client.elastic orchestrator.eval orchestrator.eval.save.disk orchestrator.eval.save.hf
  orchestrator.heartbeat orchestrator.model.lora orchestrator.prime_monitor orchestrator.prime_monitor.log_extras
  orchestrator.sampling.temp_scheduler orchestrator.val orchestrator.wandb orchestrator.wandb.log_extras
  trainer.bench trainer.ckpt trainer.ckpt.weights trainer.data.fake trainer.heartbeat trainer.metrics_server
  trainer.model.ac trainer.model.lora trainer.wandb`;
