import { newestSpec } from '../../runs/forms/stored-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import type { TrainerKind } from '../../core/kinds/trainers.ts';
import type { LoadedConfig } from '../../load/load-run-config.ts';
import { findTorchPython } from '../../backends/torch/find-python.ts';
import { nodesPlace } from '../../backends/nodes/node-link.ts';
import { sizeOfEngine } from '../../workers/install/engine.ts';
import { gpuSettingsOf } from '../../config/gpu-settings.ts';
import { gpusHere } from '../../workers/stack/gpus-here.ts';

/** The trainer of a run whose file names GPUs for training and no trainer. */
interface ChosenTrainer {
  /** Settings that make PyTorch train; empty otherwise. */
  readonly overrides: Readonly<Record<string, string>>;
  /** The choice in a line; null when the file makes it, or names no GPUs that train. */
  readonly says: string | null;
  /** PyTorch would train, and is not installed. */
  readonly isLacking?: boolean;
}

interface Machine {
  readonly gpus: () => Promise<number>;
  /** The Python with PyTorch's trainer; null without one. */
  readonly python: () => Promise<string | null>;
  /** Whether other nodes of a trainer are told where they join it. */
  readonly hasAddress: () => boolean;
  /** It has a GPU of Apple's, which PyTorch calls mps. */
  readonly isMac: boolean;
}

const thisMachine = (projectFolder: string): Machine => ({
  gpus: gpusHere,
  python: () =>
    findTorchPython(null, projectFolder).catch((error: unknown) => {
      if (error instanceof RatchetError) return null;
      throw error;
    }),
  hasAddress: () => nodesPlace(process.env) !== null,
  isMac: process.platform === 'darwin' && process.arch === 'arm64',
});

interface Around {
  readonly projectFolder: string;
  /** Other workers that would train it; null when they are started here. */
  readonly othersWork: string | null;
  /** Kind of the trainer that the run began with; null = it has not begun. */
  readonly began: () => Promise<TrainerKind | null>;
  readonly machine?: Machine;
}

/**
 * PyTorch if the file names GPUs for its trainer, and both are on this machine; else the embedded engine on the processor, with the reason. A run that
 * has begun keeps its trainer: nothing but a person changes it.
 */
export async function chooseTrainer(
  { spec, readAs, placeOf }: Pick<LoadedConfig, 'spec' | 'readAs' | 'placeOf'>,
  { projectFolder, othersWork, began: asksRun, machine = thisMachine(projectFolder) }: Around,
): Promise<ChosenTrainer> {
  const { trainer } = spec;
  const gpus = spec.requested?.trainerGpus ?? 0;
  const isSaid = (key: string): boolean => {
    const { file, line } = placeOf(['trainer', key]);
    return line !== null || file === 'command line';
  };
  if (!('provider' in trainer) || isSaid('kind') || isSaid('provider') || gpus === 0)
    return { overrides: {}, says: null };
  const nodes = Number(spec.requested?.torch['nodes'] ?? 1);
  // Those that sample come first, as with vLLM; a trainer on several nodes leaves them nodes of their own.
  const first = nodes > 1 ? 0 : (gpuSettingsOf(spec).inferenceGpus ?? 0);
  const ids = trainer.gpuIds ?? Array.from({ length: gpus }, (_, i) => first + i);
  const counted = gpus === 1 ? '1 GPU' : `${gpus} GPUs`;
  const ofNodes = nodes === 1 ? '' : ` of each of ${nodes} nodes`;
  const named = `${counted}${trainer.gpuIds === undefined ? '' : ` (${ids.join(', ')})`}${ofNodes}`;
  const table = readAs.dialect === 'ratchet' ? 'trainer' : 'ratchet.trainer';
  const isMac = machine.isMac && nodes === 1;
  const dtype = isMac ? 'float32' : 'bfloat16';
  // A rank runs on each of these GPUs; a Mac has one GPU and one rank.
  const byTorch = {
    [`${table}.kind`]: 'torch',
    ...(isSaid('dtype') ? {} : { [`${table}.dtype`]: dtype }),
    ...(isMac ? { [`${table}.gpu_ids`]: '[0]', [`${table}.gpus`]: '1' } : {}),
  };
  const embedded = (why: string, more: Pick<ChosenTrainer, 'isLacking'> = {}): ChosenTrainer => ({
    overrides: {},
    says: `the embedded engine trains on the processor, and not on the ${named} that the file has for the trainer: ${why}`,
    ...more,
  });
  const began = await asksRun();
  if (began === 'onnx')
    return embedded(
      'the run began on it and goes on there. With PyTorch from its newest version on: --trainer.kind torch',
    );
  if (began === 'torch')
    return { overrides: byTorch, says: `PyTorch trains on the ${named} of the file, as the run began` };
  if (began !== null) return { overrides: {}, says: null };
  if (othersWork !== null) return embedded(`${othersWork}. With a PyTorch of theirs: --trainer.kind torch`);
  const there = isMac ? Number.POSITIVE_INFINITY : await machine.gpus();
  if (there <= Math.max(...ids))
    return embedded(
      `this machine has ${there === 0 ? 'none' : there === 1 ? 'one, number 0' : `${there}, numbers 0 to ${there - 1}`}. PyTorch on the processor: --trainer.kind torch; on a Tinker server: [trainer] kind = "tinker" (docs/guide/gpus.md)`,
    );
  if (nodes > 1 && !machine.hasAddress())
    return embedded(
      'its nodes join at MASTER_ADDR, which is not set here (docs/guide/several-machines.md#a-trainer-on-several-machines)',
    );
  const python = await machine.python();
  if (python === null)
    return embedded(
      `no Python here has PyTorch, transformers and PEFT: npx ratchet-rl engine install torch (${sizeOfEngine('torch')}), or train with --yes`,
      { isLacking: true },
    );
  if (isMac)
    return {
      overrides: byTorch,
      says: `PyTorch trains on this Mac, by ${python}, in place of the ${named} of the file: on its GPU if that Python has it (mps), else on the processor, in ${dtype}; the embedded engine with --trainer.kind onnx`,
    };
  const says = `PyTorch trains on the ${named} of the file, by ${python}; the embedded engine on the processor with --trainer.kind onnx`;
  return { overrides: byTorch, says };
}

/** Kind of the trainer that a run has had up to now; null if there is no such run. */
export async function trainerOfRun(run: {
  readonly name: string;
  readonly store: string;
}): Promise<TrainerKind | null> {
  try {
    return (await newestSpec(run)).trainer.kind;
  } catch (error) {
    if (error instanceof RatchetError) return null; // whatever else is wrong with it is said when it is opened
    throw error;
  }
}
