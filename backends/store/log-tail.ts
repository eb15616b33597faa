import { randomUUID } from 'node:crypto';
import { appendFile, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import path from 'node:path';

/** How the tail of a log is named where logs cannot grow: objects beside it, `LOG.tail/OFFSET`, by where in the log they begin. */
export function tailOf(key: string): string {
  return `${key}.tail/`;
}

export function tailKey(key: string, offset: number): string {
  return tailOf(key) + String(offset).padStart(15, '0');
}

export function isTailPart(key: string): boolean {
  return /\.tail\/\d{15}$/.test(key);
}

export function offsetOf(tailKey: string): number {
  return Number(tailKey.slice(-15));
}

/** Whether a key may be that of a log: what a copy from S3 left beside it is part of it. */
export function isLog(key: string): boolean {
  return /(\.(jsonl|log)|tfevents\.[^/]+)$/.test(key);
}

/** What a copy from S3 left beside a log that is a file now goes into it. Of several who find it one does it. */
export async function foldTailFiles(log: string): Promise<void> {
  const folder = `${log}.folding-${randomUUID()}`;
  try {
    await rename(`${log}.tail`, folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
    throw error;
  }
  const size = await stat(log).then(
    (body) => body.size,
    (error: NodeJS.ErrnoException) => (error.code === 'ENOENT' ? 0 : Promise.reject(error)),
  );
  const parts = (await readdir(folder)).filter((name) => isTailPart(tailOf('') + name)).sort();
  // Below it: what the body holds already.
  for (const name of parts.filter((part) => offsetOf(part) >= size)) {
    await appendFile(log, await readFile(path.join(folder, name)));
  }
  await rm(folder, { recursive: true, force: true });
}
