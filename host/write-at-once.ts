import { randomUUID } from 'node:crypto';
import { type FileHandle, open, rename, rm } from 'node:fs/promises';

/** Leaves the file whole or absent, even after a power cut: a neighbour is written, synced and renamed. */
export async function writeAtOnce(
  path: string,
  content: Uint8Array | ((file: FileHandle) => Promise<void>),
): Promise<void> {
  const temporary = `${path}.${randomUUID()}.tmp`;
  try {
    const file = await open(temporary, 'wx');
    try {
      await (typeof content === 'function' ? content(file) : file.writeFile(content));
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}
