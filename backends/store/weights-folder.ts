import path from 'node:path';
import { z } from 'zod';
import { isErrno } from './file-store.ts';
import type { Store } from './types.ts';
import { readRegularText } from '../../engine/regular-file.ts';

/** The part of PEFT's adapter_config.json that says where an adapter's base lies, relative to the adapter. */
export const AdapterBase = z.object({ base_model_name_or_path: z.string() });

/** The folder on this machine with the weights below a prefix; of an adapter, its base beside it as well, where the adapter looks for it. */
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
