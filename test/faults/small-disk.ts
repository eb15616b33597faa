/** A disk of its own for the runs of a stage, small enough to be filled to its last byte: a tmpfs, which needs root. */
import { execFileSync } from 'node:child_process';
import { closeSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs';
import path from 'node:path';
import { isErrno } from '../../store/file-store.ts';
import { resolveStoreUri } from '../../store/index.ts';
import type { Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

const size = '64m';

export interface SmallDisk {
  /** Leaves no room for another file. */
  readonly fill: () => void;
  readonly free: () => void;
}

/**
 * The runs are on it, with the versions that wait for their commit; Temporal's database and the logs of the roles are
 * not.
 */
export function makeSmallDisk(folder: string): Promise<Surroundings> {
  const disk = path.join(folder, 'disk');
  mkdirSync(disk);
  mount(disk);
  const ballast = path.join(disk, 'ballast');
  return Promise.resolve({
    overrides: { 'store.uri': 'file:disk/outputs' },
    storeUri: resolveStoreUri('disk/outputs', folder),
    disk: { fill: () => fill(ballast), free: () => rmSync(ballast) },
    close() {
      unmount(disk);
      return Promise.resolve();
    },
  });
}

function fill(file: string): void {
  const handle = openSync(file, 'w');
  const block = Buffer.alloc(1024 * 1024);
  try {
    for (;;) writeSync(handle, block);
  } catch (error) {
    if (!isErrno(error, 'ENOSPC')) throw error;
  } finally {
    closeSync(handle);
  }
}

function mount(folder: string): void {
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size},mode=700`, 'tmpfs', folder], { stdio: 'pipe' });
  } catch (cause) {
    const why = 'a disk that can be filled is a tmpfs here, and to mount one needs Linux and root';
    throw new StageUnavailable(why, { cause });
  }
}

/** Lazily: a process that is still being ended may have a file open there. */
function unmount(folder: string): void {
  execFileSync('umount', ['-l', folder], { stdio: 'pipe' });
}
