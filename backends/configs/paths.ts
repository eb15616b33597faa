import { access } from 'node:fs/promises';
import path from 'node:path';

/** Where files that a run file names are looked for. */
export interface Folders {
  /** The config's. */
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
