import { lstat, readdir } from 'node:fs/promises';
import path from 'node:path';
import { parseStoreUri } from '../store/store-uri.ts';
import { runNamePattern } from '../core/names.ts';
import { layout } from './layout.ts';

/** Names of the runs in a folder store; empty for a bucket, where it would list every object. */
export async function listRunNames(uri: string): Promise<string[]> {
  const location = parseStoreUri(uri);
  if (location.kind !== 'file') return [];
  const { folder } = location;
  const entries = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  const names = entries.filter((name) => runNamePattern.test(name));
  const isRun = await Promise.all(names.map((name) => isThere(path.join(folder, name, layout.run()))));
  return names.filter((_, i) => isRun[i]).sort();
}

/** Also as a folder or a FIFO: such a run is damaged, and not gone. */
function isThere(file: string): Promise<boolean> {
  return lstat(file).then(
    () => true,
    () => false,
  );
}
