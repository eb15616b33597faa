import { isTable } from './tables.ts';
import type { KeyPath } from './positions.ts';
import type { RunSpec } from './run-spec.ts';

/** What a config says of GPUs, trainer and server, out of the fields that are still to come (`RunSpec.later`). */
export interface GpuSettings {
  readonly trainerGpus: number | null;
  readonly inferenceGpus: number | null;
  /** Tokens of the longest row that is trained on. */
  readonly seqLen: number | null;
  /** Activation checkpointing: every how many layers; null = none. */
  readonly checkpointEvery: number | null;
  readonly cpuOffload: boolean;
  readonly optimizerOffload: boolean;
  readonly optimizationType: 'float32' | 'bfloat16';
  readonly serverType: 'float32' | 'bfloat16';
  /** GPUs that share one copy of the model. */
  readonly tensorParallel: number;
  readonly maxModelLen: number | null;
  /** Part of a GPU's memory that the server takes, and where that stands in our own words. */
  readonly gpuMemoryUtilization: { readonly value: number; readonly path: KeyPath } | null;
}

export function gpuSettingsOf({
  later,
  seqLen,
  inference,
}: Pick<RunSpec, 'later' | 'seqLen' | 'inference'>): GpuSettings {
  const number = (path: string): number | null => numberOf(later[path]);
  const own = inference.kind === 'vllm' ? inference.vllm : null;
  const server = own?.args ?? (isTable(later['inference.vllm']) ? later['inference.vllm'] : {});
  const share = numberOf(server['gpu_memory_utilization']);
  const isCheckpointed = later['trainer.gradient_checkpointing'] === true;
  return {
    trainerGpus: number('trainer.gpus'),
    inferenceGpus: own?.gpuIds?.length ?? number('inference.gpus'),
    seqLen,
    checkpointEvery: number('trainer.ac_freq') ?? (isCheckpointed ? 1 : null),
    cpuOffload: later['trainer.fsdp_cpu_offload'] === true,
    optimizerOffload: later['trainer.optim_cpu_offload'] === true,
    optimizationType: later['trainer.optimization_dtype'] === 'bfloat16' ? 'bfloat16' : 'float32',
    serverType: server['dtype'] === 'float32' ? 'float32' : 'bfloat16',
    tensorParallel: numberOf(server['tensor_parallel_size']) ?? 1,
    maxModelLen: numberOf(server['max_model_len']),
    gpuMemoryUtilization:
      share === null ? null : { value: share, path: ['inference', 'vllm', 'gpu_memory_utilization'] },
  };
}

/** The GPU that the trainer on this machine sees; null = whichever there are. Behind those of a vLLM that is started beside it. */
export function trainerGpusOf({
  trainer,
  inference,
}: Pick<RunSpec, 'trainer' | 'inference'>): readonly number[] | null {
  if (trainer.kind !== 'onnx' || trainer.provider !== 'cuda') return null;
  if (trainer.gpuIds) return trainer.gpuIds;
  const taken = inference.kind === 'vllm' && inference.url === null ? inference.vllm.gpuIds : null;
  return taken === null ? null : [Math.max(...taken, -1) + 1];
}

function numberOf(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
