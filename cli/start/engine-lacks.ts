import type { Obstacle } from '../../load/checks/examine-run-file.ts';
import { samplesOn, trainsOn } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { enginePackages } from '../../backends/python/engine-python.ts';
import { findTorchPython } from '../../backends/torch/find-python.ts';
import { sizeOfEngine } from '../../workers/install/engine.ts';
import type { LoadedConfig } from '../../load/load-run-config.ts';
import { lookAtGpuMemory } from '../describe/gpu-memory.ts';
import { checkGpu } from '../doctor/machine.ts';

/** Whether the embedded engine computes on a GPU, to train or to sample. */
export function needsCuda(run: Pick<RunSpec, 'trainer' | 'inference'>): boolean {
  return samplesOn(run) === 'cuda' || trainsOn(run) === 'cuda';
}

/** Missing requirements of `provider = "cuda"` on this machine, in the words of `ratchet doctor`. */
export async function cudaLacks(): Promise<Obstacle[]> {
  const checks = await checkGpu({ cuda: true });
  return checks.flatMap(({ name, state, says, fix }) =>
    state === 'bad' ? [{ about: 'machine', says: `${name}: ${says}`, remedies: fix === undefined ? [] : [fix] }] : [],
  );
}

/** What this machine lacks for the run's trainer and sampler; empty where workers elsewhere compute. */
export async function engineObstacles(spec: RunSpec): Promise<Obstacle[]> {
  if ((process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return [];
  return [...(needsCuda(spec) ? await cudaLacks() : []), ...(await torchObstacles(spec))];
}

/** What this machine lacks for a run, and what the run takes of its GPUs. */
export async function lookAtMachine(loaded: Pick<LoadedConfig, 'spec' | 'readAs'>) {
  return { obstacles: await engineObstacles(loaded.spec), gpus: await lookAtGpuMemory(loaded) };
}

/** A Python for PyTorch's trainer, where the run names none of its own, which is not asked. */
export async function torchObstacles({ trainer }: Pick<RunSpec, 'trainer'>): Promise<Obstacle[]> {
  if (trainer.kind !== 'torch' || trainer.program !== null) return [];
  if ((process.env['TEMPORAL_ADDRESS'] ?? '') !== '') return [];
  try {
    await findTorchPython(null, process.cwd());
    return [];
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    const remedies = [
      `npx ratchet-rl engine install torch (${sizeOfEngine('torch')}), or train with --yes`,
      'or name a Python that has them: [trainer] program = "/path/to/venv/bin/python"',
    ];
    const says = `[trainer] kind = "torch" trains with PyTorch, and no Python here has ${enginePackages.torch.modules.join(', ')}`;
    return [{ about: 'machine', says, remedies }];
  }
}
