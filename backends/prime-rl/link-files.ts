import { copyFile, link, mkdir, readdir } from 'node:fs/promises';
import path from 'node:path';

/** The files of a folder, in another one: linked where that is the same disk, else copied. Whoever writes makes new files, in both. */
export async function linkFolder(from: string, to: string, names?: readonly string[]): Promise<void> {
  await mkdir(to, { recursive: true });
  for (const name of names ?? (await readdir(from))) await linkFile(path.join(from, name), path.join(to, name));
}

export async function linkFile(from: string, to: string): Promise<void> {
  try {
    await link(from, to);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EXDEV' && code !== 'EPERM' && code !== 'EMLINK') throw error;
    await copyFile(from, to);
  }
}
