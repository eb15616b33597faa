import { lstat } from 'node:fs/promises';
import path from 'node:path';
import { namesInStore, openRunStore } from '../store/index.ts';
import { isUnreadable } from '../store/objects.ts';
import { parseStoreUri } from '../store/store-uri.ts';
import { runNamePattern } from '../core/names.ts';
import { layout } from './layout.ts';

/** Names of the runs in a store, sorted; each that `isMeant` takes is looked at. */
export async function listRunNames(uri: string, isMeant: (name: string) => boolean = () => true): Promise<string[]> {
  const names = (await namesInStore(uri)).filter((name) => runNamePattern.test(name) && isMeant(name));
  const isRun = await Promise.all(names.map((name) => holdsRun(uri, name)));
  return names.filter((_, i) => isRun[i]);
}

/** Also where its `run.json` is a folder, a FIFO or damaged: such a run is damaged, and not gone. */
async function holdsRun(uri: string, name: string): Promise<boolean> {
  const location = parseStoreUri(uri);
  if (location.kind === 'file') return isThere(path.join(location.folder, name, layout.run()));
  try {
    return (await openRunStore(uri, name).read(layout.run())) !== null;
  } catch (error) {
    if (isUnreadable(error)) return true;
    throw error;
  }
}

function isThere(file: string): Promise<boolean> {
  return lstat(file).then(
    () => true,
    () => false,
  );
}
