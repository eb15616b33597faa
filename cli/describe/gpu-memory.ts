import { changesThatFit, trainingMemory, type TrainingMemory } from '../../core/training-memory.ts';
import { gpuMemoryOf, type GpuMemoryEstimate } from '../../load/checks/gpu-memory.ts';
import type { LoadedConfig } from '../../load/load-run-config.ts';
import { gpuBytesHere } from '../../workers/stack/gpus-here.ts';
import { gpuSettingsOf, trainerGpusOf } from '../../config/gpu-settings.ts';
import { machineMemory } from '../../engine/model/machine-memory.ts';

/** Memory of CUDA, NCCL and fragments beside tensors; assumed, not measured. */
const overheadBytes = 1.5 * 2 ** 30;
/** Python with PyTorch, which ranks on the processor share. */
const pythonBytes = 0.6 * 2 ** 30;
/** GPUs that are common, for machines that have none; in GB, as sold. */
const common = [24, 40, 48, 80, 141];

type Loaded = Pick<LoadedConfig, 'spec' | 'readAs'>;

/** The estimate for a run, and its lines for this machine's GPUs. Starts nothing. */
export async function lookAtGpuMemory(
  loaded: Loaded,
  modelConfig?: string,
): Promise<{ readonly lines: readonly string[]; readonly memory: TrainingMemory | null }> {
  const estimate = await gpuMemoryOf(loaded.spec, modelConfig);
  const gpuBytes = await gpuBytesHere();
  if (estimate !== null && trainsOnProcessor(loaded, gpuBytes))
    return { lines: describeProcessorMemory(loaded, estimate, machineMemory().totalBytes), memory: null };
  return { lines: describeGpuMemory(loaded, estimate, gpuBytes), memory: estimate?.memory ?? null };
}

/** PyTorch trains on this machine, which has no GPU, and the file names none: ranks compute on the processor. */
function trainsOnProcessor({ spec }: Loaded, gpuBytes: readonly number[]): boolean {
  const isHere = (process.env['TEMPORAL_ADDRESS'] ?? '') === '';
  const namesGpus = trainerGpusOf(spec) !== null || gpuSettingsOf(spec).trainerGpus !== null;
  return isHere && spec.trainer.kind === 'torch' && spec.trainer.nodes === 1 && gpuBytes.length === 0 && !namesGpus;
}

/** Lines on the memory that ranks without GPUs take of this machine, together. */
export function describeProcessorMemory(
  loaded: Loaded,
  { model, load: ofGpu, length }: GpuMemoryEstimate,
  machineBytes: number,
): string[] {
  const load = { ...ofGpu, onProcessor: true };
  const { ranks } = load;
  const memory = trainingMemory(load);
  const needed = ranks * memory.total + pythonBytes;
  const shared = ranks === 1 ? '' : `, with ${ranks} ranks`;
  const lines = [
    `memory of this machine, which has no NVIDIA GPU, to train by PyTorch on the processor${shared}, about ${gigabytes(needed)} (${model}, rows of ${load.tokens} tokens by ${length}):`,
    `  ${[...partsOf(memory, ranks), `Python ${gigabytes(pythonBytes)}`].join(', ')}`,
  ];
  if (needed <= machineBytes)
    return [...lines, `  the machine has ${gigabytes(machineBytes)}, for all that runs there`];
  const advice = adviceOn(loaded, changesThatFit(load, (machineBytes - pythonBytes) / ranks, ranks));
  return [...lines, `  does not fit: the machine has ${gigabytes(machineBytes)}${advice}`];
}

/** Lines on the memory of each GPU that trains, and the settings that would make it fit. */
export function describeGpuMemory(
  loaded: Loaded,
  estimate: GpuMemoryEstimate | null,
  gpuBytes: readonly number[],
): string[] {
  if (estimate === null) return [];
  const { model, load, memory, length } = estimate;
  const needed = memory.total + overheadBytes;
  const shared = load.ranks === 1 ? '' : `, of ${load.ranks} that share the model`;
  const own = trainerGpusOf(loaded.spec)?.map((id) => gpuBytes[id] ?? 0) ?? gpuBytes;
  const least = Math.min(...own.filter((bytes) => bytes > 0));
  const where = gpuBytes.length === 0 ? ' on the machine that will train (this one has none)' : '';
  const lines = [
    `memory of each GPU that trains${where}${shared}, about ${gigabytes(needed)}, by PyTorch (${model}, rows of ${load.tokens} tokens by ${length}):`,
    `  ${[...partsOf(memory, 1), `CUDA ${gigabytes(overheadBytes)}, assumed`].join(', ')}`,
  ];
  const advice = (bytes: number): string =>
    adviceOn(loaded, changesThatFit(load, bytes - overheadBytes, gpuBytes.length));
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
}

function partsOf(memory: TrainingMemory, ranks: number): string[] {
  const words = {
    weights: 'weights',
    gradients: 'gradients',
    moments: 'optimizer',
    gathered: 'layers put together',
    activations: 'activations',
    working: 'logits and a layer’s gradients',
  } as const;
  return (Object.keys(words) as (keyof typeof words)[]).flatMap((part) =>
    memory[part] === 0 ? [] : [`${words[part]} ${gigabytes(ranks * memory[part])}`],
  );
}

function adviceOn({ readAs }: Loaded, found: ReturnType<typeof changesThatFit>): string {
  if (found === null) return '; no setting makes it fit. A smaller model, or [lora], does';
  const table = readAs.dialect === 'ratchet' ? '' : 'ratchet.';
  const words = found.map(({ setting, value }) => {
    const [key = '', ...before] = setting.split('.').toReversed();
    const name = before.length === 0 && table === '' ? '' : `[${table}${before.join('.')}] `.replace('.]', ']');
    return `${name}${key} = ${JSON.stringify(value)}`;
  });
  return `; it fits with ${words.join(' and ')}`;
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}
