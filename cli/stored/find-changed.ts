import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { poolChangesQueryName, poolNamePattern, runNamePattern, workflowIdPattern } from '../../core/names.ts';
import type { Changed, RunChange } from '../../core/rl/changes.ts';
import { readChanges, type RecordedChanges } from '../../runs/changes.ts';
import { defaultFolders } from '../../runs/evaluations/folders.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { temporalHere } from '../../workers/temporal/client.ts';
import { withTemporal } from '../temporal/with-temporal.ts';
import { defaultStore, findRunFolder } from './run-place.ts';

/** All changes of something that is found by its name; `store` as in `--store`. Throws where there is no such thing. */
export async function changesNamed(
  kind: Changed['kind'],
  name: string,
  store: string | undefined,
): Promise<RecordedChanges> {
  const recorded = await readChanges(await findChanged(kind, name, store));
  return kind === 'pool' ? withTold(recorded, await toldByPool(name)) : recorded;
}

async function findChanged(kind: Changed['kind'], name: string, store: string | undefined): Promise<Changed> {
  switch (kind) {
    case 'run':
      return { ...(await findRunFolder(name, store)), kind };
    case 'sweep':
    case 'schedule':
    case 'pool': {
      const pattern = { sweep: runNamePattern, schedule: workflowIdPattern, pool: poolNamePattern }[kind];
      if (!pattern.test(name))
        throw new RatchetError('ConfigInvalid', `expected the name of a ${kind}, got ${JSON.stringify(name)}.`);
      return { kind, name, store: resolveStoreUri(store ?? defaultStore, process.cwd()) };
    }
    case 'search': {
      const { findSearchFolder } = await import('../gepa/search-folder.ts');
      return { kind, place: placeAt(await findSearchFolder(name, process.cwd(), { alsoBegun: true })) };
    }
    case 'evaluation':
      return { kind, place: placeAt(await findEvaluationFolder(name)) };
    default:
      return kind satisfies never;
  }
}

function placeAt(folder: string) {
  return { store: `${pathToFileURL(path.dirname(folder)).href}/`, name: path.basename(folder), prefix: '' };
}

/** The folder itself, or the one of this id: also of an evaluation that has not ended, and has no results yet. */
async function findEvaluationFolder(name: string): Promise<string> {
  const folders = (await defaultFolders(process.cwd())).map((folder) => path.join(folder, 'evals'));
  const groups = (await Promise.all(folders.map(foldersIn))).flat();
  const known = [path.resolve(name), ...(await Promise.all(groups.map(foldersIn))).flat()];
  for (const folder of known)
    if ((folder === known[0] || path.basename(folder) === name) && (await isFolder(path.join(folder, 'evaluation'))))
      return folder;
  throw new RatchetError(
    'RunNotFound',
    `${name}: expected the folder of an evaluation (outputs/evals/ENV--MODEL/ID), or its ID (npx ratchet-rl eval list); found none.`,
  );
}

async function foldersIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map((entry) => path.join(folder, entry.name));
}

async function isFolder(folder: string): Promise<boolean> {
  return (await stat(folder).catch(() => null))?.isDirectory() ?? false;
}

/** What the pool's workflow knows: its newest changes, also those that no store has yet. Empty where there is none. */
async function toldByPool(pool: string): Promise<readonly RunChange[]> {
  if ((await temporalHere(process.cwd())) === null) return [];
  const { askOpenPool } = await import('../../activities/around/tell-pool.ts');
  return withTemporal(
    async (client) => (await askOpenPool<readonly RunChange[], []>(client, pool, poolChangesQueryName)) ?? [],
  );
}

function withTold({ changes, damaged }: RecordedChanges, told: readonly RunChange[]): RecordedChanges {
  const known = new Set(changes.map(nameOf));
  const all = [...changes, ...told.filter((change) => !known.has(nameOf(change)))];
  return { changes: all.toSorted((a, b) => a.time.localeCompare(b.time)), damaged };
}

function nameOf({ execution, id }: RunChange): string {
  return `${execution}/${id}`;
}
