import { createHash } from 'node:crypto';
import { lstatSync, readdirSync, type Stats } from 'node:fs';
import path from 'node:path';
import { sandboxFilesBytesMax, sandboxFilesMax } from '../../../core/limits.ts';
import { readRegularSync, whyUnreadable } from '../../../host/regular-file.ts';
import type { SandboxFile } from '../../sandboxes/types.ts';

/** Files of this machine that are put into sandboxes, with a digest over their names, modes and contents (hex). */
export interface CopiedFolder {
  readonly files: readonly SandboxFile[];
  readonly sha256: string;
}

/** Made by tools, and no part of what a program needs. */
const leftOut: ReadonlySet<string> = new Set(['.git', '.ratchet', '__pycache__', '.DS_Store']);

/** A file or folder that cannot be copied, in words. */
export class Uncopied extends Error {}

/**
 * Reads a file, under its own name, or all files below a folder. Throws `Uncopied` for links, other things than files,
 * and more than a sandbox takes.
 */
export function readCopiedFiles(place: string): CopiedFolder {
  const found = [...filesAt(place)];
  const files: SandboxFile[] = [];
  let bytesLeft = sandboxFilesBytesMax;
  for (const [name, file, stats] of found) {
    bytesLeft -= stats.size;
    if (bytesLeft < 0) throw new Uncopied(`${place} with more than ${sandboxFilesBytesMax} bytes`);
    files.push({ path: name, bytes: readBytes(file), mode: stats.mode & 0o111 ? 0o755 : 0o644 });
  }
  const digest = createHash('sha256');
  for (const { path: name, bytes, mode } of files)
    digest.update(`${JSON.stringify([name, mode, createHash('sha256').update(bytes).digest('hex')])}\n`);
  return { files, sha256: digest.digest('hex') };
}

type Found = readonly [name: string, file: string, stats: Stats];

function filesAt(place: string): Found[] {
  const stats = statsOf(place);
  if (stats.isFile()) return [[path.basename(place), place, stats]];
  if (!stats.isDirectory()) throw new Uncopied(`${place}, which is neither a file nor a folder`);
  const found: Found[] = [];
  collect(place, '', found);
  return found;
}

function collect(root: string, below: string, found: Found[]): void {
  const entries = readdirSync(path.join(root, below)).toSorted((a, b) => (a < b ? -1 : 1));
  for (const name of entries.filter((entry) => !leftOut.has(entry))) {
    const inside = path.posix.join(below, name);
    const file = path.join(root, inside);
    const stats = statsOf(file);
    if (stats.isDirectory()) collect(root, inside, found);
    else if (stats.isFile()) found.push([inside, file, stats]);
    else throw new Uncopied(`${file}, which is ${stats.isSymbolicLink() ? 'a link' : 'no file'}`);
    if (found.length > sandboxFilesMax) throw new Uncopied(`${root} with more than ${sandboxFilesMax} files`);
  }
}

function statsOf(file: string): Stats {
  try {
    return lstatSync(file);
  } catch (cause) {
    throw new Uncopied(`${whyUnreadable(cause)}: ${file}`, { cause });
  }
}

function readBytes(file: string): Uint8Array {
  try {
    return readRegularSync(file, sandboxFilesBytesMax, { links: 'refused' });
  } catch (cause) {
    throw new Uncopied(`${whyUnreadable(cause)}: ${file}`, { cause });
  }
}
