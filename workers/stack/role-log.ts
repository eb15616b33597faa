import { closeSync, fstatSync, mkdirSync, openSync, renameSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';

/** Limit of a role's log file, with one older file beside it: bounds what a long run leaves behind. */
const logBytesMax = 8 * 1024 * 1024;

export interface RoleLog {
  readonly path: string;
  /** Appends; a full disk costs lines of the log, never the run. */
  append(chunk: Buffer | string): void;
  close(): void;
}

export function openRoleLog(path: string, bytesMax: number = logBytesMax): RoleLog {
  mkdirSync(dirname(path), { recursive: true });
  let file = openSync(path, 'a', 0o600);
  let size = fstatSync(file).size;
  let closed = false;

  const rotate = () => {
    renameSync(path, `${path}.1`);
    const before = file;
    file = openSync(path, 'a', 0o600);
    size = 0;
    closeSync(before);
  };
  return {
    path,
    append(chunk) {
      if (closed) return;
      const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
      try {
        if (size > 0 && size + bytes.length > bytesMax) rotate();
        size += writeSync(file, bytes);
      } catch {
        // Ignored: a failing log has nowhere to report it.
      }
    },
    close() {
      if (closed) return;
      closed = true;
      closeSync(file);
    },
  };
}
