import type { Dirent } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { readsAnything } from '../host/trusted-files.ts';
import { parseStoreUri } from './store-uri.ts';

/**
 * Refuses to begin a run, an evaluation or a search in a folder with other contents: files would mix, and retention
 * might remove some. Names in the folder are only mentioned if every file may be named.
 */
export async function requireOwnFolder({
  store,
  name,
  prefix,
}: {
  readonly store: string;
  readonly name: string;
  /** The prefix of an evaluation or a search within the folder: '' = the whole folder, which then belongs to no run. */
  readonly prefix?: string;
}): Promise<void> {
  const location = parseStoreUri(store);
  if (location.kind !== 'file') return;
  const folder = path.join(location.folder, name);
  const entries = await entriesOf(folder);
  if (entries === null) return;
  const takesAll = prefix !== undefined && path.join('/', prefix) === '/';
  const isRuns = takesAll && entries.some((entry) => entry.name === 'run.json');
  if (!isRuns && ((await isOurs(folder, entries)) || !(await holdsFile(folder, entries)))) return;
  const others = entries.map((entry) => entry.name).toSorted();
  const shown = others.slice(0, namesShown).join(', ');
  const more = others.length > namesShown ? ` and ${others.length - namesShown} more` : '';
  const found = isRuns ? 'the folder of a run' : readsAnything() ? `${shown}${more}` : 'other files';
  const ours = takesAll ? 'that of an evaluation or a search' : 'that of a run, an evaluation or a search';
  throw new RatchetError(
    'ConfigInvalid',
    `${folder}: expected no such folder, an empty one, or ${ours}, found ${found}. Nothing was written. Choose another name (--name NAME) or another store, or move what is there elsewhere.`,
  );
}

const namesShown = 3;

/** Objects that are written first and kept. They identify older and damaged runs too. */
const landmarks: Readonly<Record<string, RegExp>> = {
  '.': /^(?:run\.json|metadata\.json|results\.jsonl)$/,
  specs: /^[0-9a-f]{16}(?:\.source)?\.json$/,
  claims: /^claim_\d+\.json$/,
  'lineages/main/steps': /^step_\d+\.json$/,
  evaluation: /^attempt_\d+\.json$/,
  search: /^search\.json$/,
};

async function isOurs(folder: string, entries: readonly Dirent[]): Promise<boolean> {
  for (const [below, pattern] of Object.entries(landmarks)) {
    const found = below === '.' ? entries : await entriesOf(path.join(folder, below));
    if (found?.some((entry) => entry.isFile() && pattern.test(entry.name))) return true;
  }
  return false;
}

/** Whether it contains anything but folders. Leftovers of a killed writer do not count. */
async function holdsFile(folder: string, entries: readonly Dirent[]): Promise<boolean> {
  for (const entry of entries) {
    if (!entry.isDirectory()) {
      if (!entry.name.startsWith('.tmp-')) return true;
      continue;
    }
    if (entry.name === 'lost+found') continue; // belongs to the disk that is mounted there
    const below = path.join(folder, entry.name);
    if (await holdsFile(below, (await entriesOf(below)) ?? [])) return true;
  }
  return false;
}

/** Null if there is no folder. */
async function entriesOf(folder: string): Promise<Dirent[] | null> {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return null;
    throw error;
  }
}
