import { startedWith } from '../core/kinds/inference.ts';
import { isTable, type Table } from './toml/tables.ts';
import type { KeyPath } from './toml/positions.ts';
import type { RunSpec } from './run-spec.ts';

/** Arguments for vLLM: the one that samples, or the one that another system would start in its place. */
export function vllmArgumentsOf({ later, inference }: Pick<RunSpec, 'later' | 'inference'>): Table {
  const args = 'vllm' in inference ? inference.vllm.args : later['inference.vllm'];
  return isTable(args) ? args : {};
}

/** Device of the embedded trainer; null = another trainer. */
export function trainsOn({ trainer }: Pick<RunSpec, 'trainer'>): 'cpu' | 'cuda' | null {
  return 'provider' in trainer ? trainer.provider : null;
}

/** Device of the policy server that is started with the run; null = others sample. */
export function samplesOn({ inference }: Pick<RunSpec, 'inference'>): 'cpu' | 'cuda' | null {
  return 'provider' in inference && startedWith(inference) === 'policy server' ? inference.provider : null;
}

/** What a config says of GPUs, trainer and server, out of the fields that are still to come (`RunSpec.later`). */
interface GpuSettings {
  readonly trainerGpus: number | null;
  readonly inferenceGpus: number | null;
  /** The server's share of a GPU's memory, with its path in our own words. */
  readonly gpuMemoryUtilization: { readonly value: number; readonly path: KeyPath } | null;
}

export function gpuSettingsOf({ later, inference }: Pick<RunSpec, 'later' | 'inference'>): GpuSettings {
  const number = (path: string): number | null => numberOf(later[path]);
  const own = 'vllm' in inference ? inference.vllm : null;
  const share = numberOf(vllmArgumentsOf({ later, inference })['gpu_memory_utilization']);
  return {
    trainerGpus: number('trainer.gpus'),
    inferenceGpus: own?.gpuIds?.length ?? number('inference.gpus'),
    gpuMemoryUtilization:
      share === null ? null : { value: share, path: ['inference', 'vllm', 'gpu_memory_utilization'] },
  };
}

/** GPUs of the trainer on this machine, after those of a vLLM that is started beside it; null = any. */
export function trainerGpusOf({
  trainer,
  inference,
}: Pick<RunSpec, 'trainer' | 'inference'>): readonly number[] | null {
  if (trainer.kind !== 'torch' && trainsOn({ trainer }) !== 'cuda') return null;
  if ('gpuIds' in trainer && trainer.gpuIds) return trainer.gpuIds;
  const taken = 'vllm' in inference && inference.url === null ? inference.vllm.gpuIds : null;
  if (taken === null) return null;
  const first = Math.max(...taken, -1) + 1;
  return Array.from({ length: trainer.kind === 'torch' ? trainer.ranks : 1 }, (_, i) => first + i);
}

function numberOf(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
