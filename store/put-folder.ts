import path from 'node:path';
import { diskError } from './file-store.ts';
import { inTemporaryFolder } from '../host/temporary-folder.ts';
import type { Store } from './types.ts';

interface MadeFolder<T> {
  readonly result: T;
  /** Its files, in the order in which they are to be stored. */
  readonly names: readonly string[];
}

/**
 * Stores a folder that `make` fills. Where the store is a folder itself the files are made below `pendingAt` and moved to `prefix`, in
 * place of all that is there; else they are made on this process's own disk and uploaded.
 */
export async function putFolder<T>(
  store: Store,
  { prefix, pendingAt }: { readonly prefix: string; readonly pendingAt: string },
  make: (folder: string) => Promise<MadeFolder<T>>,
): Promise<T> {
  const upload = async (folder: string, { result, names }: MadeFolder<T>): Promise<T> => {
    for (const name of names) await store.putFile(prefix + name, path.join(folder, name));
    return result;
  };
  const { staging } = store;
  if (!staging) return inTemporaryFolder('made', async (folder) => upload(folder, await make(folder)));
  const made = `${pendingAt}made/`;
  const staged = await staging.folder(made);
  try {
    const found = await make(staged.at);
    if (found.names.length === 0) return found.result;
    await staging.seal(made);
    return (await staging.settle(made, prefix)) ? found.result : await upload(staged.path, found);
  } catch (error) {
    throw diskError(prefix, error);
  } finally {
    await staged.close();
    await store.removeAll(pendingAt);
  }
}
