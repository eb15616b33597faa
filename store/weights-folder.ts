import path from 'node:path';
import { z } from 'zod';
import { isErrno } from './file-store.ts';
import type { Store } from './types.ts';
import { readRegularText } from '../host/regular-file.ts';

/** The field of PEFT's adapter_config.json with the path of an adapter's base, relative to the adapter. */
export const AdapterBase = z.object({ base_model_name_or_path: z.string() });

/** The local folder with the weights below a prefix; an adapter's base is beside it, where the adapter looks for it. */
export async function weightsFolder(store: Store, prefix: string): Promise<string> {
  const folder = await store.localFolder(prefix);
  const text = await readRegularText(path.join(folder, 'adapter_config.json'), undefined, { within: [folder] }).catch(
    (error: unknown) => {
      if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return null;
      throw error;
    },
  );
  if (text === null) return folder;
  const { base_model_name_or_path: base } = AdapterBase.parse(JSON.parse(text));
  if (base.startsWith('.')) await store.localFolder(path.posix.join(prefix, base, '/'));
  return folder;
}
