import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { runNamePattern } from '../core/names.ts';
import { requireStorePlace } from '../host/trusted-files.ts';
import { checkFileStore } from './check-file-store.ts';
import { FileStore } from './file-store.ts';
import { copiesFolder } from './s3-local-copies.ts';
import { checkS3Store, foldersInS3, S3Store } from './s3-store.ts';
import { type Landmark, SeenStore } from './seen-store.ts';
import { parseStoreUri } from './store-uri.ts';
import type { Store } from './types.ts';

export type { Store } from './types.ts';
export { type Landmark, requireSeen } from './seen-store.ts';
export { linesOfStore, resolveStoreUri, showStoreUri } from './store-uri.ts';
export { takeStoreCredentials } from './s3-credentials.ts';
export { allCopies } from './s3-local-copies.ts';
export { requireOwnFolder } from './own-folder.ts';

/**
 * Opens the store of one run. `uri` is the absolute place of all runs (`resolveStoreUri`); the run's own objects are
 * below its name.
 */
export function openRunStore(uri: string, run: string, options: OpenOptions = {}): Store {
  if (!runNamePattern.test(run)) {
    throw new RatchetError(
      'ConfigInvalid',
      `${JSON.stringify(run)} is no name of a run: expected up to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit.`,
    );
  }
  const location = parseStoreUri(uri);
  const { begun } = options;
  if (location.kind === 's3') {
    const store = new S3Store(location, run);
    return begun
      ? new SeenStore(store, begun, { freshMs: seenFreshMs, name: JSON.stringify([uri, run, begun.is]) })
      : store;
  }
  const { folder } = location;
  const store = new FileStore(path.join(folder, run), {
    makesRoot: !begun,
    requirePlace: () => requireStorePlace(folder),
  });
  return begun ? new SeenStore(store, begun) : store;
}

interface OpenOptions {
  /** Set for a store in which something was already created. Nothing is written or reported missing unless this landmark is there. */
  readonly begun?: Landmark;
}

/** A bucket does not disappear as a mount does, so it is not checked before each write. */
const seenFreshMs = 10_000;

/** Names of all folders in the place of all runs, sorted; which of them are runs is not looked at. */
export async function namesInStore(uri: string): Promise<string[]> {
  const location = parseStoreUri(uri);
  if (location.kind === 's3') return (await foldersInS3(location)).toSorted();
  const names: string[] = await readdir(location.folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  return names.toSorted();
}

/** The local folder above every run's `localFolder`: the policy server must be allowed to read it. */
export function localRoot(uri: string): string {
  const location = parseStoreUri(uri);
  return location.kind === 'file' ? location.folder : copiesFolder(location);
}

const checked = new Map<string, Promise<void>>();

/** Throws for a store that cannot keep the promises of the port, before a run rests on it; once per process and URI. */
export async function checkStore(uri: string): Promise<void> {
  const location = parseStoreUri(uri);
  const check = async (): Promise<void> => {
    if (location.kind !== 'file') return checkS3Store(location);
    await requireStorePlace(location.folder);
    return checkFileStore(location.folder);
  };
  const checking = checked.get(uri) ?? check();
  checked.set(uri, checking);
  await checking.catch((error: unknown) => {
    checked.delete(uri);
    throw error;
  });
}
