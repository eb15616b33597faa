import type { LoadedConfig } from '../../load/load-run-config.ts';
import { gpusHere } from '../../workers/stack/gpus-here.ts';
import { cudaLacks } from './cuda-lacks.ts';

/** Device of the embedded trainer, for a run whose file is another system's and names GPUs for its trainer. */
interface ChosenTrainer {
  readonly provider: 'cuda' | null;
  /** The choice in a line; null when the file makes it, or names no GPUs that train. */
  readonly says: string | null;
}

const tryIt = 'then --trainer.provider cuda (docs/guide/gpu.md)';

/**
 * A GPU if the file names some for its trainer and the engine can compute on one here; else the CPU, with the reason.
 */
export async function chooseTrainer(
  loaded: LoadedConfig,
  othersWork: string | null,
  machine: { readonly gpus: () => Promise<number>; readonly lacks: typeof cudaLacks } = {
    gpus: gpusHere,
    lacks: cudaLacks,
  },
): Promise<ChosenTrainer> {
  const { spec, readAs, placeOf } = loaded;
  const { trainer } = spec;
  const { file, line } = placeOf(['trainer', 'provider']);
  const isSaid = line !== null || file === 'command line';
  const gpus = spec.requested?.trainerGpus ?? 0;
  if (readAs.dialect === 'ratchet' || !('provider' in trainer) || isSaid || gpus === 0)
    return { provider: null, says: null };
  const ids = trainer.gpuIds ?? Array.from({ length: gpus }, (_, i) => i);
  const named = `${gpus} GPU${gpus === 1 ? '' : 's'} (${ids.join(', ')})`;
  const onProcessor = (why: string): ChosenTrainer => ({
    provider: null,
    says: `the embedded engine trains on the processor, and not on the ${named} that the file has for the trainer: ${why}`,
  });
  if (othersWork !== null) return onProcessor(`${othersWork}. On a GPU of theirs: --trainer.provider cuda`);
  const there = await machine.gpus();
  if (there <= Math.min(...ids)) {
    const has = there === 0 ? 'none' : there === 1 ? 'one, number 0' : `${there}, numbers 0 to ${there - 1}`;
    return onProcessor(`this machine has ${has}. On a Tinker server: [trainer] kind = "tinker" (docs/guide/gpu.md)`);
  }
  const [lack, ...further] = await machine.lacks();
  if (lack !== undefined) {
    const others = further.length === 0 ? '' : ` (and ${further.length} more: npx ratchet-rl doctor)`;
    return onProcessor(`${lack.says}${others}. ${[...lack.remedies, tryIt].join('; ')}`);
  }
  const one = gpus === 1 ? '' : `, one of ${gpus}: one process trains`;
  return {
    provider: 'cuda',
    says: `the embedded engine trains on GPU ${ids[0]}${one}, as the file asks (provider = "cuda"); on the processor with --trainer.provider cpu`,
  };
}
