import { lstat, mkdtemp, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { isAlive } from './is-alive.ts';
import { processPlace } from './process-place.ts';

/**
 * A folder of this process among the temporary ones, for its user alone. One that a killed process leaves is removed by
 * the next process that opens one beside it.
 */
export async function openTemporaryFolder(name: string, parent = os.tmpdir()): Promise<string> {
  await removeLeft(parent);
  return mkdtemp(path.join(parent, `ratchet-${name}-${process.pid}-${processPlace()}-`));
}

/** Provides a folder for the duration of `work` and removes it in any case. */
export async function inTemporaryFolder<T>(name: string, work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await openTemporaryFolder(name);
  try {
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

const looked = new Map<string, Promise<void>>();

function removeLeft(parent: string): Promise<void> {
  const looking = looked.get(parent) ?? look(parent);
  looked.set(parent, looking);
  return looking;
}

async function look(parent: string): Promise<void> {
  const place = processPlace();
  for (const entry of await readdir(parent).catch(() => [])) {
    const [, pid, its] = /^ratchet-[a-z-]+-(\d+)-([0-9a-f]{8})-\w{6}$/.exec(entry) ?? [];
    if (pid === undefined || its !== place || isAlive(Number(pid))) continue;
    const folder = path.join(parent, entry);
    const about = await lstat(folder).catch(() => null);
    if (about?.isDirectory() && about.uid === process.getuid?.()) await rm(folder, { recursive: true, force: true });
  }
}
