import { changesThatFit, type TrainingMemory } from '../../core/training-memory.ts';
import { gpuMemoryOf, type GpuMemoryEstimate } from '../../load/checks/gpu-memory.ts';
import type { LoadedConfig } from '../../load/load-run-config.ts';
import { gpuBytesHere } from '../../workers/stack/gpus-here.ts';
import { trainerGpusOf } from '../../config/gpu-settings.ts';

/** Memory of CUDA, NCCL and fragments beside tensors; assumed, not measured. */
const overheadBytes = 1.5 * 2 ** 30;
/** GPUs that are common, for machines that have none; in GB, as sold. */
const common = [24, 40, 48, 80, 141];

/** The estimate for a run, and its lines for this machine's GPUs. Starts nothing. */
export async function lookAtGpuMemory(
  loaded: Pick<LoadedConfig, 'spec' | 'readAs'>,
  modelConfig?: string,
): Promise<{ readonly lines: readonly string[]; readonly memory: TrainingMemory | null }> {
  const estimate = await gpuMemoryOf(loaded.spec, modelConfig);
  return { lines: describeGpuMemory(loaded, estimate, await gpuBytesHere()), memory: estimate?.memory ?? null };
}

/** Lines on the memory of each GPU that trains, and the settings that would make it fit. */
export function describeGpuMemory(
  { spec, readAs }: Pick<LoadedConfig, 'spec' | 'readAs'>,
  estimate: GpuMemoryEstimate | null,
  gpuBytes: readonly number[],
): string[] {
  if (estimate === null) return [];
  const { model, load, memory, length } = estimate;
  const { total, ...parts } = memory;
  const part = (name: keyof typeof parts, words: string) =>
    parts[name] === 0 ? [] : [`${words} ${gigabytes(parts[name])}`];
  const needed = total + overheadBytes;
  const what = [
    ...part('weights', 'weights'),
    ...part('gradients', 'gradients'),
    ...part('moments', 'optimizer'),
    ...part('gathered', 'layers put together'),
    ...part('activations', 'activations'),
    ...part('working', 'logits and a layer’s gradients'),
    `CUDA ${gigabytes(overheadBytes)}, assumed`,
  ].join(', ');
  const shared = load.ranks === 1 ? '' : `, of ${load.ranks} that share the model`;
  const own = trainerGpusOf(spec)?.map((id) => gpuBytes[id] ?? 0) ?? gpuBytes;
  const least = Math.min(...own.filter((bytes) => bytes > 0));
  const where = gpuBytes.length === 0 ? ' on the machine that will train (this one has none)' : '';
  const lines = [
    `memory of each GPU that trains${where}${shared}, about ${gigabytes(needed)}, by PyTorch (${model}, rows of ${load.tokens} tokens by ${length}):`,
    `  ${what}`,
  ];
  if (!Number.isFinite(least)) {
    const enough = common.find((size) => size * 1e9 >= needed);
    return [
      ...lines,
      enough === undefined
        ? `  more than a GPU of ${common.at(-1)} GB has${advice(141e9)}`
        : `  a GPU of ${enough} GB has it`,
    ];
  }
  if (needed <= least) return [...lines, `  the GPU has ${gigabytes(least)}`];
  return [...lines, `  does not fit: the GPU has ${gigabytes(least)}${advice(least)}`];

  function advice(bytes: number): string {
    const found = changesThatFit(load, bytes - overheadBytes, gpuBytes.length);
    if (found === null) return '; no setting makes it fit. A smaller model, or [lora], does';
    const table = readAs.dialect === 'ratchet' ? '' : 'ratchet.';
    const words = found.map(({ setting, value }) => {
      const [key = '', ...before] = setting.split('.').toReversed();
      const name = before.length === 0 && table === '' ? '' : `[${table}${before.join('.')}] `.replace('.]', ']');
      return `${name}${key} = ${JSON.stringify(value)}`;
    });
    return `; it fits with ${words.join(' and ')}`;
  }
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}
