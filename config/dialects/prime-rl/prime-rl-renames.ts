import type { Rename } from '../dialect.ts';
import { wordsOf } from '../ours.ts';

/** Names of prime-rl's fields between v0.4 and 0.8.1. It keeps no old name itself. */

const renamed = (since: string, was: string, is: string): Rename => ({ since, was, is });

const samplings = ['train', 'train.source[]', 'eval', 'eval.source[]'].map((table) => `orchestrator.${table}.sampling`);
const groups = ['orchestrator', 'orchestrator.eval', 'orchestrator.eval.source[]', 'orchestrator.train.source[]'];
const movedToVllm = wordsOf(`
  all2all_backend api_server_count data_parallel_rpc_port data_parallel_size_local enable_dbo enable_eplb
  enable_expert_parallel enable_lora enable_prefix_caching enable_return_routed_experts gpu_memory_utilization
  lora_target_modules max_cpu_loras max_lora_rank max_loras quantization seed`);

/** Names of the months before v0.4. */
export const primeRl04Renames: readonly Rename[] = [
  renamed('0.4', 'trainer.model.experimental.lora', 'trainer.model.lora'),
  renamed('0.4', 'orchestrator.lora_name', 'orchestrator.model.lora.name'),
];

export const primeRlRenames: readonly Rename[] = [
  renamed('0.6', 'orchestrator.env[]', 'orchestrator.train.source[]'),
  renamed('0.8', 'orchestrator.train.env[]', 'orchestrator.train.source[]'),
  renamed('0.8', 'orchestrator.eval.env[]', 'orchestrator.eval.source[]'),
  renamed('0.6', 'orchestrator.sampling', 'orchestrator.train.sampling'),
  ...samplings.map((table) => renamed('0.6', `${table}.max_tokens`, `${table}.max_completion_tokens`)),
  ...groups.map((table) => renamed('0.6', `${table}.rollouts_per_example`, `${table}.group_size`)),
  renamed('0.7', 'orchestrator.client', 'orchestrator.model.client'),
  renamed('0.7', 'orchestrator.student.client', 'orchestrator.model.client'),
  renamed('0.7', 'orchestrator.student.model', 'orchestrator.model'),
  renamed('0.8.1', 'orchestrator.max_inflight_rollouts', 'orchestrator.concurrency.max_inflight'),
  renamed('0.8.1', 'orchestrator.max_inflight_episodes', 'orchestrator.concurrency.max_inflight'),
  renamed('0.6', 'orchestrator.eval.skip_eval_on_restart', 'orchestrator.eval.skip_eval_on_resume'),
  renamed('0.6', 'max_model_len', 'inference.vllm.max_model_len'),
  renamed('0.8.1', 'inference.model.name', 'inference.vllm.model'),
  renamed('0.8.1', 'inference.model', 'inference.vllm'),
  renamed('0.8.1', 'inference.parallel.tp', 'inference.vllm.tensor_parallel_size'),
  renamed('0.8.1', 'inference.parallel.dp', 'inference.vllm.data_parallel_size'),
  ...movedToVllm.map((key) => renamed('0.8.1', `inference.${key}`, `inference.vllm.${key}`)),
  renamed('0.8.1', 'ckpt.resume_step', 'resume.step'),
  renamed('0.8.1', 'trainer.ckpt.resume_step', 'resume.step'),
  renamed('0.8.1', 'orchestrator.ckpt.resume_step', 'resume.step'),
  ...primeRl04Renames,
  renamed('0.4', 'ckpt.keep', 'ckpt.keep_last'),
  renamed('0.8.1', 'clean_output_dir', 'clean'),
  renamed('0.8.1', 'wandb', 'monitors.wandb'),
  renamed('0.8.1', 'trainer.wandb', 'trainer.monitors.wandb'),
  renamed('0.8.1', 'orchestrator.wandb', 'orchestrator.monitors.wandb'),
  renamed('0.8.1', 'orchestrator.prime_monitor', 'orchestrator.monitors.prime'),
  renamed('0.8.1', 'file_monitor.filename', 'monitors.file.path'),
  renamed('0.8.1', 'trainer.file_monitor.filename', 'trainer.monitors.file.path'),
  renamed('0.8.1', 'orchestrator.file_monitor.filename', 'orchestrator.monitors.file.path'),
  renamed('0.8', 'trainer.model.fused_lm_head_chunk_size', 'trainer.model.fused_lm_head_token_chunk_size'),
];
