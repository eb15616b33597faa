import { z } from 'zod';
import { args, choice, flag, fraction, positive, resumeStep, text, whole } from '../values.ts';
import { becomes, converted, type Field, ignored, refused, together } from './dialect.ts';
import {
  type Fields,
  processes,
  speed,
  teacher,
  gone,
  log,
  checkpoints,
  monitors,
  tokenizer,
  broadcast,
  transport,
  envVars,
  vlm,
} from './prime-rl-head-shared.ts';
import { gpuIds, port, texts, under, why } from './prime-rl-words.ts';
import { orchestrator } from './prime-rl-head-orchestrator.ts';
import { trainer } from './prime-rl-head-trainer.ts';

/**
 * Every field of `rl`'s files in prime-rl 0.8.1 (2026-08-21), and those that v0.5 to v0.8 had and it dropped. What was only
 * renamed stands in prime-rl-renames.ts.
 */

const top: Fields = {
  'model.name': together('`model`', text(), { usual: 'Qwen/Qwen3-0.6B' }),
  'model.vlm': vlm,
  env_vars: envVars,
  'run.name': together('`name`', text(), { isNullable: true }),
  'run.dir': ignored('a run’s folder is called after the run', text(), { isNullable: true }),
  output_dir: converted('store.uri', text(), (folder) => `file:${folder}`, { usual: 'outputs' }),
  clean: ignored(why.clean, flag()),
  ...log,
  ...checkpoints,
  'resume.step': becomes('resume.step', resumeStep(), { usual: 'the latest', isNullable: true }),
  'resume.dir': { ...refused('checkpoints of other runs; `ratchet fork` begins a run at one'), isNullable: true },
  ...monitors,
  ...tokenizer,
  max_steps: together('`max_steps`', whole(1), { isNullable: true }),
  seq_len: together('`seq_len`', whole(1), { isNullable: true }),
  ...broadcast,
  ...transport,
  'deployment.type': together('read with the numbers beside it', choice('single_node', 'multi_node')),
  'deployment.gpus_per_node': together('GPUs of a node', whole(1), { usual: '8' }),
  'deployment.num_train_gpus': together('`trainer.gpus`', whole(1), { usual: '1' }),
  'deployment.num_infer_gpus': together('`inference.gpus`', whole(0), { usual: '1' }),
  'deployment.num_train_nodes': together('`trainer.gpus`: nodes times GPUs of a node', whole(1)),
  'deployment.num_infer_nodes': together('`inference.gpus`: nodes times GPUs of a node', whole(0), {
    isNullable: true,
  }),
  'deployment.num_infer_replicas': together('`inference.gpus`, times this', whole(1), { usual: '1' }),
  'deployment.nodes_per_fsdp_group': processes(whole(1)),
  'deployment.orchestrator_on_inference': processes(flag()),
  'deployment.num_teacher_gpus': teacher,
  'deployment.num_teacher_nodes': teacher,
  inference_gpu_ids: together('`inference.gpus`: how many', gpuIds()),
  trainer_gpu_ids: together('`trainer.gpus`: how many', gpuIds()),
  teacher_gpu_ids: teacher,
  teacher_inference: teacher,
  slurm: processes(args()),
  dry_run: ignored('a run file does not say whether it is run; `--dry-run` does', flag()),
  max_async_level: together('`max_async_level`, at most 1', whole(0), { isNullable: true }),
  bench: gone(flag()),
};

const v = (key: string, schema: z.ZodType): Field => becomes(`inference.vllm.${key}`, schema, { isNullable: true });
const adapters = (schema: z.ZodType): Field =>
  ignored('adapters are served as the trainer has them', schema, { isNullable: true });
/** In vLLM's own words; what is not here is passed on as it is. */
export const vllmArguments: Fields = {
  model: together('`model`, with a warning where names differ', text()),
  dtype: v('dtype', choice('auto', 'float16', 'bfloat16', 'float32')),
  max_model_len: together('`inference.vllm.max_model_len`', whole(1), { isNullable: true }),
  enforce_eager: v('enforce_eager', flag()),
  trust_remote_code: v('trust_remote_code', flag()),
  chat_template: v('chat_template', text()),
  tool_call_parser: v('tool_call_parser', text()),
  reasoning_parser: v('reasoning_parser', text()),
  rope_scaling: v('rope_scaling', z.union([args(), text()]).meta({ expected: 'a table, or a text' })),
  tensor_parallel_size: v('tensor_parallel_size', whole(1)),
  data_parallel_size: v('data_parallel_size', whole(1)),
  data_parallel_size_local: v('data_parallel_size_local', whole(1)),
  data_parallel_rpc_port: v('data_parallel_rpc_port', port()),
  api_server_count: v('api_server_count', whole(0)),
  seed: ignored('what is drawn is drawn from the run’s one seed', whole(0)),
  gpu_memory_utilization: v('gpu_memory_utilization', fraction()),
  enable_prefix_caching: v('enable_prefix_caching', flag()),
  quantization: v('quantization', text()),
  enable_lora: adapters(flag()),
  max_loras: adapters(whole(1)),
  max_cpu_loras: adapters(whole(1)),
  max_lora_rank: adapters(whole(1)),
  lora_target_modules: adapters(texts()),
  enable_expert_parallel: v('enable_expert_parallel', flag()),
  all2all_backend: v('all2all_backend', text()),
  enable_eplb: v('enable_eplb', flag()),
  enable_dbo: v('enable_dbo', flag()),
  enable_return_routed_experts: v('enable_return_routed_experts', flag()),
};

const inference: Fields = {
  'server.host': processes(text()),
  'server.port': becomes('inference.port', port()),
  'server.liveness_timeout_seconds': processes(positive()),
  router: processes(args()),
  backend_port: processes(port()),
  vllm: together('`inference.vllm`: further arguments as they are', args()),
  ...under('vllm', vllmArguments),
  vllm_extra: together('`inference.vllm`: further arguments as they are', args()),
  ...log,
  env_vars: envVars,
  use_deep_gemm: speed(flag()),
  use_pd_kv_transfer: processes(flag()),
  'weight_broadcast.type': ignored(why.broadcast, choice('filesystem', 'nccl', 'nixl')),
  kv_cache_offload: processes(args()),
  enable_fp32_lm_head: speed(flag()),
  enable_fp32_router_logits: speed(flag()),
  deployment: processes(args()),
  slurm: processes(args()),
  output_dir: ignored('the run has one store: output_dir at the top', text()),
  dry_run: ignored('a run file does not say whether it is run; `--dry-run` does', flag()),
};

export const primeRlHeadFields: Fields = {
  ...top,
  ...under('trainer', trainer),
  ...under('orchestrator', orchestrator),
  ...under('inference', inference),
};

/** Tables that turn something on, and may be "None". */
export const primeRlHeadTables: readonly string[] = [
  'ckpt',
  'inference',
  'model',
  'monitors.file',
  'monitors.prime',
  'monitors.wandb',
  'orchestrator.ckpt',
  'orchestrator.eval',
  'orchestrator.heartbeat',
  'orchestrator.model.lora',
  'orchestrator.monitors.file',
  'orchestrator.monitors.prime',
  'orchestrator.monitors.wandb',
  'orchestrator.prime_monitor',
  'orchestrator.train.sampling.temp_scheduler',
  'orchestrator.train.source[].curriculum',
  'orchestrator.val',
  'orchestrator.wandb',
  'resume',
  'tokenizer',
  'trainer.ckpt',
  'trainer.gc',
  'trainer.heartbeat',
  'trainer.metrics_server',
  'trainer.model.compile',
  'trainer.model.lora',
  'trainer.monitors.file',
  'trainer.monitors.wandb',
  'trainer.wandb',
  'wandb',
  'weight_broadcast',
  'rollout_transport',
];
