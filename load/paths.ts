import { access } from 'node:fs/promises';
import path from 'node:path';

/** Folders in which a run file's names are resolved. */
export interface Folders {
  /** Folder of the config. */
  readonly folder: string;
  readonly projectFolder: string;
}

export async function isThere(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    () => false,
  );
}

/** From the config's folder if it begins with a dot, else from the project's. */
export function resolvePath(written: string, { folder, projectFolder }: Folders): string {
  return path.resolve(written.startsWith('.') ? folder : projectFolder, written);
}
