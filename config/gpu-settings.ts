import { isTable } from './tables.ts';
import type { KeyPath } from './positions.ts';
import type { RunSpec } from './run-spec.ts';

/** What a config says of GPUs, trainer and server, out of the fields that are still to come (`RunSpec.later`). */
export interface GpuSettings {
  readonly trainerGpus: number | null;
  readonly inferenceGpus: number | null;
  /** Part of a GPU's memory that the server takes, and where that stands in our own words. */
  readonly gpuMemoryUtilization: { readonly value: number; readonly path: KeyPath } | null;
}

export function gpuSettingsOf({ later, inference }: Pick<RunSpec, 'later' | 'inference'>): GpuSettings {
  const number = (path: string): number | null => numberOf(later[path]);
  const own = inference.kind === 'vllm' ? inference.vllm : null;
  const server = own?.args ?? (isTable(later['inference.vllm']) ? later['inference.vllm'] : {});
  const share = numberOf(server['gpu_memory_utilization']);
  return {
    trainerGpus: number('trainer.gpus'),
    inferenceGpus: own?.gpuIds?.length ?? number('inference.gpus'),
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
