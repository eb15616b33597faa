import type { Obstacle } from '../../load/checks/examine-run-file.ts';
import { samplesOn, trainsOn } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
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

/** The same for a run; empty if it computes on no GPU, or workers elsewhere do. */
export async function cudaObstacles(spec: RunSpec): Promise<Obstacle[]> {
  const isElsewhere = (process.env['TEMPORAL_ADDRESS'] ?? '') !== '';
  return isElsewhere || !needsCuda(spec) ? [] : cudaLacks();
}
