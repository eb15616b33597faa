import { realpathSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { openRegular, type Opening } from '../regular-file.ts';

/**
 * Where the files of a model folder may really be: in it, and where it is a snapshot in the cache of huggingface_hub, in the whole of its
 * repository, whose snapshots are links to its blobs. A link out of there is refused: what we write from a model folder, and what a server
 * says with it, would hold what somebody else could not read.
 */
export function ofRepository(folder: string): Opening {
  return { within: [folder, ...cachedRepository(folder)] };
}

/**
 * Throws `NotAFile` for a folder with anything in it that {@link ofRepository} does not let be opened. Another program, such as vLLM, opens
 * files by their names and follows every link.
 */
export async function requireOwnFiles(folder: string): Promise<void> {
  const opening = ofRepository(folder);
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }); // enters no folder through a link
  for (const entry of entries) {
    if (entry.isDirectory()) continue;
    const file = path.join(entry.parentPath, entry.name);
    const handle = await openRegular(file, opening).catch((error: unknown) => {
      if (error instanceof Error && 'code' in error && error.code === 'EACCES') return null; // nor does any program of this user's
      throw error;
    });
    await handle?.close();
  }
}

/** `models--OWNER--NAME` of `…/models--OWNER--NAME/snapshots/COMMIT`, by the folder's real path. */
function cachedRepository(folder: string): string[] {
  let real: string;
  try {
    real = realpathSync(folder);
  } catch {
    return []; // who opens a file of it says that it is not there
  }
  const snapshots = path.dirname(real);
  const repository = path.dirname(snapshots);
  const isCached = path.basename(snapshots) === 'snapshots' && /^(?:models|datasets)--/.test(path.basename(repository));
  return isCached ? [repository] : [];
}
