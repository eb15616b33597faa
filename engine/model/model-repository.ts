import { realpathSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { openRegular, type Opening } from '../../host/regular-file.ts';

/**
 * Allows files that are really inside the model folder. A snapshot in huggingface_hub's cache allows the whole repository, because
 * its files are links to blobs there. Other links are refused: copies and server answers made from the folder could reveal files that other
 * users may not read.
 */
export function ofRepository(folder: string): Opening {
  return { within: [folder, ...cachedRepository(folder)] };
}

/**
 * Throws `NotAFile` if the folder contains anything that {@link ofRepository} refuses. Programs such as vLLM open files by name and follow
 * every link.
 */
export async function requireOwnFiles(folder: string): Promise<void> {
  const opening = ofRepository(folder);
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }); // does not enter folders through links
  for (const entry of entries) {
    if (entry.isDirectory()) continue;
    const file = path.join(entry.parentPath, entry.name);
    const handle = await openRegular(file, opening).catch((error: unknown) => {
      if (error instanceof Error && 'code' in error && error.code === 'EACCES') return null; // unreadable for vLLM, too
      throw error;
    });
    await handle?.close();
  }
}

/** Finds `models--OWNER--NAME` in `…/models--OWNER--NAME/snapshots/COMMIT`, from the folder's real path. */
function cachedRepository(folder: string): string[] {
  let real: string;
  try {
    real = realpathSync(folder);
  } catch {
    return []; // opening a file there reports what is missing
  }
  const snapshots = path.dirname(real);
  const repository = path.dirname(snapshots);
  const isCached = path.basename(snapshots) === 'snapshots' && /^(?:models|datasets)--/.test(path.basename(repository));
  return isCached ? [repository] : [];
}
