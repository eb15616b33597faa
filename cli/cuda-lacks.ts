import type { Obstacle } from '../backends/configs/examine-run-file.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { checkGpu } from './doctor/machine.ts';

/** Whether the embedded engine computes on a GPU, to train or to sample. */
export function needsCuda({ trainer, inference }: Pick<RunSpec, 'trainer' | 'inference'>): boolean {
  const samples = inference.kind === 'embedded' && inference.provider === 'cuda' && inference.url === null;
  return samples || (trainer.kind === 'onnx' && trainer.provider === 'cuda');
}

/** What this machine lacks for `provider = "cuda"`, in the words of `ratchet doctor`. */
export async function cudaLacks(): Promise<Obstacle[]> {
  const checks = await checkGpu({ cuda: true });
  return checks.flatMap(({ name, state, says, fix }) =>
    state === 'bad' ? [{ about: 'machine', says: `${name}: ${says}`, remedies: fix === undefined ? [] : [fix] }] : [],
  );
}

/** The same for a run; nothing where it computes on no GPU, or workers elsewhere do. */
export async function cudaObstacles(spec: RunSpec): Promise<Obstacle[]> {
  const isElsewhere = (process.env['TEMPORAL_ADDRESS'] ?? '') !== '';
  return isElsewhere || !needsCuda(spec) ? [] : cudaLacks();
}
