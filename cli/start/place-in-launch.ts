import type { LoadOptions } from '../../load/load-run-config.ts';
import { launchOf, oneOfManyRefusal } from '../typed/one-of-many.ts';
import { chooseSampler } from './choose-sampler.ts';
import { runTrainerNode } from './trainer-node.ts';

/**
 * Typed once on each of several nodes, as for torch.distributed: the first has the run, with a trainer of so many nodes, and the others join its ranks until
 * it ends (null). Throws where the trainer is no such group.
 */
export async function placeInLaunch(
  file: string,
  load: LoadOptions & { readonly overrides: Readonly<Record<string, string>> },
): Promise<{ readonly overrides: Readonly<Record<string, string>> } | null> {
  const launch = launchOf(process.env);
  if (launch === null) return { overrides: load.overrides };
  const { looked } = await chooseSampler(file, load);
  const trainer = looked?.spec.trainer;
  if ((trainer?.kind !== 'torch' && trainer?.kind !== 'prime-rl') || !launch.names.includes('RANK'))
    throw oneOfManyRefusal(file, launch, process.env);
  if (launch.rank === 0) return { overrides: { ...load.overrides, 'ratchet.trainer.nodes': String(launch.size) } };
  await runTrainerNode({ kind: trainer.kind, program: trainer.program, endsWithRun: true });
  return null;
}
