import { RatchetError } from '../../core/errors.ts';
import { listRunNames } from '../../runs/list-runs.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { ownerInFolder, requireRole } from '../../workers/temporal/who-may.ts';

/**
 * Names of all runs below a folder. Throws `RunNotFound` for a named run that is not among them, and `NotAllowed` for
 * one that somebody else owns.
 */
export async function runsBelow(
  outputs: string,
  { toRemove, projectFolder }: { readonly toRemove: readonly string[]; readonly projectFolder: string },
): Promise<string[]> {
  const store = resolveStoreUri(outputs, '/');
  const runs = await listRunNames(store);
  const unknown = toRemove.find((name) => !runs.includes(name));
  if (unknown !== undefined) {
    const there = runs.length === 0 ? 'There are none' : `There are: ${runs.join(', ')}`;
    throw new RatchetError(
      'RunNotFound',
      `${JSON.stringify(unknown)}: expected a run below ${outputs}. ${there}. Nothing was removed.`,
    );
  }
  for (const run of toRemove) {
    const owner = ownerInFolder({ name: run, store });
    await requireRole('uninstall', { of: 'run', run, owner }, { projectFolder });
  }
  return runs;
}
