import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern } from '../../core/names.ts';
import { openRunStore, resolveStoreUri, showStoreUri } from '../../store/index.ts';
import { listRunNames } from '../../runs/list-runs.ts';
import { runsMeant } from '../../core/runs-meant.ts';
import { layout } from '../../runs/layout.ts';
import { isFolder } from '../typed/output-file.ts';
import { findRunFolder, defaultStore } from '../stored/run-place.ts';

/** Subject of a page. */
export interface PagePlace {
  /** Absolute URI of the folder that holds the runs. */
  readonly store: string;
  /** null: all runs of the folder. */
  readonly run: string | null;
  /** Names of runs, or beginnings of names and `*`: the page opens with these compared. */
  readonly compare?: readonly string[];
}

/** Resolves several runs of one folder, or `lr-*`; one name, folder or address as `findPagePlace` does. */
export async function findPagePlaces(what: readonly string[], storeUri: string | undefined): Promise<PagePlace> {
  if (what.length < 2 && !what[0]?.endsWith('*')) return findPagePlace(what[0], storeUri);
  const other = what.find((word) => word !== '*' && !runNamePattern.test(word.replace(/\*$/, '')));
  if (other !== undefined)
    throw new RatchetError(
      'RunNotFound',
      `Expected names of runs of one folder, such as words-1 words-2, or 'words-*', got ${JSON.stringify(other)} among them. --store names another folder than ./outputs.`,
    );
  const store = resolveStoreUri(storeUri ?? defaultStore, process.cwd());
  const { runs, absent } = runsMeant(what, await listRunNames(store));
  if (runs.length === 0 || absent.some((word) => !word.endsWith('*')))
    throw new RatchetError(
      'RunNotFound',
      `There is no run ${absent.join(', ')} in ${showStoreUri(store)}. Say where the runs are with --store URI.`,
    );
  return { store, run: null, compare: what };
}

/** Resolves a run's name, a folder or an address of runs, or of one run; by default ./outputs. */
export async function findPagePlace(what: string | undefined, storeUri: string | undefined): Promise<PagePlace> {
  if (what === undefined) return { store: resolveStoreUri(storeUri ?? defaultStore, process.cwd()), run: null };
  const isPlace = what.includes('/') || what.includes(':') || (await isFolderHere(what));
  if (!isPlace || storeUri !== undefined) {
    const { name, store } = await findRunFolder(what, storeUri);
    return { store, run: name };
  }
  const store = resolveStoreUri(what, process.cwd());
  const above = aboveOf(store);
  const isRun = above !== null && (await openRunStore(above.store, above.run).read(layout.run())) !== null;
  if (isRun) return above;
  if (store.startsWith('s3:'))
    throw new RatchetError(
      'RunNotFound',
      `Expected the address of a run, which holds a run.json, got ${what}, which holds none. The runs of a bucket are not listed. Name one: ${what.split('?', 1)[0]!.replace(/\/?$/, '/')}RUN`,
    );
  if (!(await isFolder(fileURLToPath(store))))
    throw new RatchetError('RunNotFound', `There is no folder ${what}, of runs or of one run.`);
  return { store, run: null };
}

/** Splits an address into the folder of runs and the run's name. */
function aboveOf(store: string): { readonly store: string; readonly run: string } | null {
  const [address = '', query] = store.split('?', 2);
  const match = /^(.*[^/]\/)([^/]+)\/$/.exec(address); // `s3://BUCKET/` has no parent
  if (!match || !runNamePattern.test(match[2]!)) return null;
  return { store: match[1]! + (query === undefined ? '' : `?${query}`), run: match[2]! };
}

async function isFolderHere(what: string): Promise<boolean> {
  // A run of that name in ./outputs precedes a folder in the current one.
  return !existsSync(path.join('outputs', what, layout.run())) && isFolder(what);
}
