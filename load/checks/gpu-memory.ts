import { gpuSettingsOf, vllmArgumentsOf } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { type TrainingLoad, type TrainingMemory, trainingMemory } from '../../core/training-memory.ts';
import { shapeOf } from './dry-run.ts';

/** Memory of each GPU that trains a run. */
export interface GpuMemoryEstimate {
  /** Model whose shape the figures assume. */
  readonly model: string;
  readonly load: TrainingLoad;
  readonly memory: TrainingMemory;
  /** The setting that gives the length of the longest row. */
  readonly length: string;
}

/** Numbers that an optimizer keeps of each weight. */
const momentsOf = { adamw: 2, muon: 1, sgd: 1, sign_sgd: 0 } as const;

/**
 * The estimate for PyTorch's trainer, where it trains or the file names GPUs for the trainer; null otherwise, and if nobody knows the model's shape. Reads
 * config.json or the table of known models: nothing is fetched.
 */
export async function gpuMemoryOf(spec: RunSpec, modelConfig?: string): Promise<GpuMemoryEstimate | null> {
  const { trainer, lora, optimizer } = spec;
  const { trainerGpus } = gpuSettingsOf(spec);
  if (trainer.kind !== 'torch' && (trainerGpus === null || trainer.kind !== 'onnx')) return null;
  const known = await shapeOf(spec, modelConfig).catch((error: unknown) => {
    if (error instanceof RatchetError) return null; // said where the model is checked
    throw error;
  });
  if (known === null) return null;
  const { tokens, length } = longestRow(spec);
  const load: TrainingLoad = {
    shape: known.shape,
    lora,
    tokens,
    dtype: dtypeOf(spec),
    heldIn: settingOf(spec, 'optimization_dtype') === 'bfloat16' ? 'bfloat16' : 'float32',
    moments: momentsOf[optimizer.type ?? 'adamw'],
    recomputesEvery: trainer.acFreq ?? 0,
    ranks: trainer.kind === 'torch' ? trainer.ranks * trainer.nodes : (trainerGpus ?? 1),
    offloadsWeights: settingOf(spec, 'fsdp_cpu_offload') === true,
    offloadsMoments: settingOf(spec, 'optim_cpu_offload') === true,
    isPacked: true,
  };
  return { model: known.name, load, memory: trainingMemory(load), length };
}

/** PyTorch, if it is chosen for the file's GPUs, computes in bfloat16 unless the file says otherwise. */
function dtypeOf(spec: RunSpec): TrainingLoad['dtype'] {
  const said = settingOf(spec, 'dtype') ?? (spec.trainer.kind === 'torch' ? 'float32' : 'bfloat16');
  return said === 'bfloat16' ? 'bfloat16' : 'float32';
}

/** A setting of the trainer, wherever the spec has it. */
function settingOf({ trainer, requested }: RunSpec, key: string): unknown {
  const inSpec = key.replaceAll(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return (trainer as Readonly<Record<string, unknown>>)[inSpec] ?? requested?.torch[key];
}

function longestRow(spec: RunSpec): Pick<GpuMemoryEstimate, 'length'> & { readonly tokens: number } {
  if (spec.data) return { tokens: spec.data.seqLen, length: '[data] seq_len' };
  if (spec.seqLen !== null) return { tokens: spec.seqLen, length: 'seq_len' };
  const served = vllmArgumentsOf(spec)['max_model_len'];
  if (typeof served === 'number') return { tokens: served, length: 'max_model_len' };
  return { tokens: spec.sampling.maxTokens, length: 'max_tokens alone: prompts and further turns are not counted' };
}
