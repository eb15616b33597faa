import { wordsOf } from '../../../config/dialects/ours.ts';

export interface WithoutMeaning {
  readonly because: string;
  readonly fields: readonly string[];
}

function below(table: string, names: string): string[] {
  return wordsOf(names).map((name) => `${table}.${name}`);
}

const processes =
  wordsOf(`log monitors wandb heartbeat output_dir weight_broadcast rollout_transport env_vars metrics_server
  memory_profiler_path trace_path prime_monitor file_monitor`);

/** Fields that change nothing of what is trained, and why. */
export const withoutMeaning: readonly WithoutMeaning[] = [
  {
    because: 'they say how fast the trainer computes, or with how much memory',
    fields: below(
      'trainer.model',
      `attn compile ac ac_offloading fsdp_cpu_offload optim_cpu_offload full_offload impl reshard_after_forward dp_replicate ep
      ep_comm_backend deepep_num_sms deepep_token_chunk_size tp cp cp_style moe_router_dtype moe_use_grouped_mm moe_fused_kernel
      conversion_dir fused_lm_head_token_chunk_size fused_lm_head_chunk_size debug.force_balanced_routing trust_remote_code
      load_using_meta liger_kernel`,
    ),
  },
  {
    because: 'they say how the trainer’s processes live',
    fields: below(
      'trainer',
      'matmul_precision gc dist_timeout_seconds max_concurrent_runs enable_token_export weights',
    ),
  },
  {
    because: 'they say how rollouts are shared out among processes, and how many are played at once',
    fields: below(
      'orchestrator',
      `concurrency max_concurrent max_inflight_rollouts workers_per_env num_train_workers bench max_env_worker_restarts
      env_server_base_port pad_to_multiple_of use_token_client client model.client model.trust_remote_code
      tokenizer.trust_remote_code collect_inference_metrics inference_metrics_roles reload_weights_on_start buffer.hash_keys
      buffer.skip_verification train.source[].serve eval.source[].serve optim.lr eval.save eval.retry eval.per_rollout
      eval.reasoning_field env_install_prerelease max_inflight_episodes pool_size env[].address train.env[].address
      train.env[].pool train.env[].interception train.env[].num_workers train.env[].multiplex train.num_workers student.client student.model.trust_remote_code train.env[].state_columns lora_name use_renderer`,
    ),
  },
  {
    because: 'prime-rl sets them itself: environments stop where rows are cut; written, they are refused',
    fields: ['orchestrator.train.env[].extra_env_kwargs', 'orchestrator.env[].extra_env_kwargs'],
  },
  {
    because: 'they say how often what failed is tried again',
    fields: below(
      'orchestrator',
      `max_error_reschedule_attempts train.max_retries train.env[].max_retries train.env[].retries env[].max_retries`,
    ),
  },
  {
    because: 'they say where things are kept, told and sent',
    fields: processes.flatMap((key) => [key, `trainer.${key}`, `orchestrator.${key}`]),
  },
  {
    because: 'they say what is started, where',
    fields: wordsOf(
      'experimental trainer.experimental orchestrator.experimental trainer.bench clean clean_output_dir dump_config dry_run deployment slurm run inference_gpu_ids trainer_gpu_ids',
    ),
  },
  {
    because: 'they are about the server that samples, beside its length and its weights, which are compared',
    fields: ['inference'],
  },
  {
    because: 'the trainer is given tokens; its tokenizer is only saved with the weights',
    fields: wordsOf(`tokenizer.name tokenizer.trust_remote_code trainer.tokenizer.name
      trainer.tokenizer.trust_remote_code`),
  },
];

/** Fields of `RLConfig`; transformers' further arguments are compared if they change what is trained. */
export const vfRlWithoutMeaning: readonly WithoutMeaning[] = [
  {
    because: 'they say how fast it computes, how it is told and where it is kept',
    fields: below(
      'args',
      `micro_batch_size max_concurrent generation_timeout vllm_server_host vllm_server_port vllm_server_timeout output_dir run_name
      bf16 gradient_checkpointing save_strategy save_only_model logging_steps log_on_each_node report_to remove_unused_columns
      shuffle_dataset lora_config lora_modules_to_save lora_use_rslora use_liger`,
    ),
  },
  {
    because: 'evaluations are asked for, and then have lines of their own',
    fields: below('args', 'eval_strategy eval_steps'),
  },
  { because: 'rows have the tokens of the model alone, as everywhere', fields: below('args', 'mask_env_responses') },
];

/** Fields of Hosted Training's `RLConfig`. */
export const hostedWithoutMeaning: readonly WithoutMeaning[] = [
  {
    because: 'they say where a run is kept, told and played',
    fields:
      wordsOf(`name wandb adapters checkpoints infrastructure cluster_name checkpoint_id tailscale run_config env_file
      env_files trajectory_strategy`),
  },
  {
    because: 'none of the files has them',
    fields: wordsOf('teacher val buffer pre_batch_filters post_batch_filters max_inflight_rollouts sampling eval'),
  },
];
