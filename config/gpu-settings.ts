import { startedWith } from '../core/kinds/inference.ts';
import type { Table } from './toml/tables.ts';
import type { KeyPath } from './toml/positions.ts';
import type { RunSpec } from './run-spec.ts';

/** Arguments for vLLM: the one that samples, or the one that another system would start in its place. */
export function vllmArgumentsOf({ requested, inference }: Pick<RunSpec, 'requested' | 'inference'>): Table {
  return 'vllm' in inference ? inference.vllm.args : (requested?.vllm ?? {});
}

/** Device of the embedded trainer; null = another trainer. */
export function trainsOn({ trainer }: Pick<RunSpec, 'trainer'>): 'cpu' | 'cuda' | null {
  return 'provider' in trainer ? trainer.provider : null;
}

/** Device of the policy server that is started with the run; null = others sample. */
export function samplesOn({ inference }: Pick<RunSpec, 'inference'>): 'cpu' | 'cuda' | null {
  return 'provider' in inference && startedWith(inference) === 'policy server' ? inference.provider : null;
}

/** GPUs that a config names, whether or not its trainer and server use them. */
interface GpuSettings {
  readonly trainerGpus: number | null;
  readonly inferenceGpus: number | null;
  /** The server's share of a GPU's memory, with its path in our own words. */
  readonly gpuMemoryUtilization: { readonly value: number; readonly path: KeyPath } | null;
}

export function gpuSettingsOf({ requested, inference }: Pick<RunSpec, 'requested' | 'inference'>): GpuSettings {
  const own = 'vllm' in inference ? inference.vllm : null;
  const share = vllmArgumentsOf({ requested, inference })['gpu_memory_utilization'];
  return {
    trainerGpus: requested?.trainerGpus ?? null,
    inferenceGpus: own?.gpuIds?.length ?? requested?.inferenceGpus ?? null,
    gpuMemoryUtilization:
      typeof share === 'number' ? { value: share, path: ['inference', 'vllm', 'gpu_memory_utilization'] } : null,
  };
}

/** GPUs of the trainer on this machine, after those of a vLLM that is started beside it; null = any. */
export function trainerGpusOf({
  trainer,
  inference,
}: Pick<RunSpec, 'trainer' | 'inference'>): readonly number[] | null {
  if (!('ranks' in trainer) && trainsOn({ trainer }) !== 'cuda') return null;
  if ('gpuIds' in trainer && trainer.gpuIds) return trainer.gpuIds;
  const taken = 'vllm' in inference && inference.url === null ? inference.vllm.gpuIds : null;
  if (taken === null) return null;
  const first = Math.max(...taken, -1) + 1;
  return Array.from({ length: 'ranks' in trainer ? trainer.ranks : 1 }, (_, i) => first + i);
}
