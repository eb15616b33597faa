import { isAlive } from '../../../host/is-alive.ts';
import { accessSync, constants, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import { pythonLogFoldersKept, pythonLogsKeptMs } from '../../../core/limits.ts';
import { namesIn } from '../packages/installed.ts';

let opened = 0;

/** Logs and large results of one bridge, in the project if that is writable. */
export function bridgeFolder(projectFolder = process.cwd()): string {
  const root = [path.join(projectFolder, '.ratchet', 'environments'), path.join(tmpdir(), 'ratchet-environments')].find(
    isWritable,
  );
  if (root === undefined)
    throw new RatchetError(
      'StoreUnavailable',
      `Neither .ratchet nor ${tmpdir()} can be written to; Python environments keep their logs there.`,
    );
  sweep(root);
  return path.join(root, `${process.pid}-${(opened += 1)}`);
}

function isWritable(folder: string): boolean {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    accessSync(folder, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

/** Removes leftovers of dead processes: unread results at once, their logs after a day, and all logs but the newest. */
function sweep(root: string): void {
  const left = readdirSync(root).flatMap((name) => {
    const pid = Number.parseInt(name, 10);
    const folder = path.join(root, name);
    return Number.isNaN(pid) || isAlive(pid) ? [] : [{ folder, at: changedAt(folder) }];
  });
  for (const [i, { folder, at }] of left.toSorted((a, b) => b.at - a.at).entries()) {
    if (i >= pythonLogFoldersKept || Date.now() - at >= pythonLogsKeptMs)
      rmSync(folder, { recursive: true, force: true });
    else
      for (const name of namesIn(folder).filter((one) => !/\.log(\.\d+)?$/.test(one)))
        rmSync(path.join(folder, name), { recursive: true, force: true });
  }
}

/** 0 if another process has just removed it. */
function changedAt(folder: string): number {
  return statSync(folder, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}
