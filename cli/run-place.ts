import { RatchetError } from '../core/errors.ts';
import { layout } from '../core/layout.ts';
import { runNamePattern } from '../core/names.ts';
import { openRunStore, resolveStoreUri } from '../backends/store/index.ts';

/** A run's folder by its name, for commands that need no Temporal. */
export async function findRunFolder(run: string, storeUri: string): Promise<{ name: string; store: string }> {
  if (!runNamePattern.test(run)) {
    throw new RatchetError('RunNotFound', `${JSON.stringify(run)} is not the name of a run.`);
  }
  const store = resolveStoreUri(storeUri, process.cwd());
  const opened = openRunStore(store, run);
  if (await opened.read(layout.run())) return { name: run, store };
  throw new RatchetError(
    'RunNotFound',
    `There is no run ${run}: ${opened.uri} holds no run.json. Where runs lie is said with --store URI.`,
  );
}

/** `--step 50` as a number. */
export function readStep(text: string): number {
  const step = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (Number.isSafeInteger(step)) return step;
  throw new RatchetError(
    'ConfigInvalid',
    `--step: expected a committed step, as in --step 50; got ${JSON.stringify(text)}.`,
  );
}

/** The option of the commands that look at a run's folder. */
export const storeOption = ['--store <uri>', 'where the runs lie', 'file:outputs'] as const;
