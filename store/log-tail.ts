import { randomUUID } from 'node:crypto';
import { appendFile, type FileHandle, readdir, rename } from 'node:fs/promises';
import path from 'node:path';
import { damaged } from './objects.ts';
import {
  NotAFile,
  openFolder,
  type OpenedFolder,
  type Opening,
  openRegular,
  readRegular,
} from '../host/regular-file.ts';

/**
 * Name of a log's tail in stores whose objects cannot grow: objects beside it, `LOG.tail/OFFSET`, by their offset in
 * the log.
 */
export function tailOf(key: string): string {
  return `${tailNameOf(key)}/`;
}

export function tailNameOf(log: string): string {
  return `${log}.tail`;
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

/** Whether a key may belong to a log, including the tail from a copy of S3. */
export function isLog(key: string): boolean {
  return /(\.(jsonl|log)|tfevents\.[^/]+)$/.test(key);
}

/** Part of a log: from an offset on, up to a number of bytes. */
interface Wanted {
  readonly offset: number;
  readonly bytesMax: number;
}

/**
 * Reads a log file, with the tail that a copy from S3 left beside it. Changes nothing: the run may belong to another
 * user, and reading must not modify it. Null if it is shorter than the wanted part. Throws ENOENT if there is none.
 */
export async function readLog(log: string, opening: Opening, wanted?: Wanted): Promise<Uint8Array | null> {
  const tail = await openTail(log, opening);
  if (tail === null) return wanted ? readPart(log, opening, wanted) : readRegular(log, undefined, opening);
  try {
    const body = await readRegular(log, undefined, opening).catch((error: unknown) => {
      if (isMissing(error)) return Buffer.alloc(0);
      throw error;
    });
    const whole = Buffer.concat([body, ...(await partsAfter(tail, body.length))]);
    const { offset, bytesMax } = wanted ?? { offset: 0, bytesMax: whole.length };
    return whole.length < offset ? null : whole.subarray(offset, offset + bytesMax);
  } finally {
    await tail.close();
  }
}

async function readPart(log: string, opening: Opening, { offset, bytesMax }: Wanted): Promise<Uint8Array | null> {
  const file = await openRegular(log, opening);
  try {
    const { size } = await file.stat();
    if (size < offset) return null;
    const bytes = new Uint8Array(Math.min(size - offset, bytesMax));
    const { bytesRead } = await file.read(bytes, 0, bytes.length, offset);
    return bytes.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}

/**
 * Appends the tail that a copy from S3 left to a log that is now a file. `log`: opened for appending. One of several
 * concurrent processes does it. A tail with anything but plain files is refused, and stays. Returns the name of the
 * folder with the tail, which may then be removed; null if there was no tail.
 */
export async function foldTail(folder: OpenedFolder, name: string, log: FileHandle): Promise<string | null> {
  const tail = await openTail(folder.at(name), {});
  if (tail === null) return null;
  try {
    // Synced before the tail is removed: from then on others append.
    const parts = await partsAfter(tail, (await log.stat()).size);
    const taken = `${name}.folding-${randomUUID()}`;
    try {
      await rename(folder.at(tailNameOf(name)), folder.at(taken));
    } catch (error) {
      if (isMissing(error)) return null; // another process took it
      throw error;
    }
    await appendFile(log, Buffer.concat(parts));
    return taken;
  } catch (error) {
    throw tail.named(error);
  } finally {
    await tail.close();
  }
}

/** Whether a copy from S3 left a tail beside this log. */
export async function hasTail(log: string, opening: Opening): Promise<boolean> {
  const tail = await openTail(log, opening);
  await tail?.close();
  return tail !== null;
}

async function openTail(log: string, opening: Opening): Promise<OpenedFolder | null> {
  return openFolder(tailNameOf(log), { ...opening, links: 'refused' }).catch((error: unknown) => {
    if (isMissing(error)) return null;
    if (error instanceof NotAFile) throw damaged(tailNameOf(log), `expected a folder, found ${error.found}`, error);
    throw error;
  });
}

/** Tails of S3 stores have less than a hundredth of this. */
const tailPartsMax = 16_384;
const tailBytesMax = 256 * 1024 * 1024;

/** Reads the parts that the body lacks. */
async function partsAfter(tail: OpenedFolder, size: number): Promise<Buffer[]> {
  const names = (await readdir(tail.at())).filter((name) => isTailPart(tailOf('') + name) && offsetOf(name) >= size);
  if (names.length > tailPartsMax)
    throw damaged(tail.path, `expected at most ${tailPartsMax} parts of a log, found ${names.length}`);
  const parts: Buffer[] = [];
  let left = tailBytesMax;
  for (const name of names.sort()) {
    const part = await readRegular(tail.at(name), left, { links: 'refused' }).catch((error: unknown) => {
      if (!(error instanceof NotAFile)) throw tail.named(error);
      throw damaged(path.join(tail.path, name), `expected a file with part of a log, found ${error.found}`, error);
    });
    left -= part.length;
    parts.push(part);
  }
  return parts;
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ENOENT';
}
