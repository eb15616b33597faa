import { createHash, randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { cacheFolder } from '../host/cache-folder.ts';
import { diskError, isErrno } from './file-store.ts';
import { getObjectToFile, type ListedObject, listObjects } from './s3-download.ts';
import { isTailPart } from './log-tail.ts';
import { inParallel, type S3Requests } from './s3-requests.ts';
import { asksMax, damagedOf, untilAskedAgain } from './s3-sound.ts';
import { metadataNames } from './s3-upload.ts';
import type { S3Location } from './store-uri.ts';

/** Bounds of the copies on this machine. */
export interface CopyLimits {
  readonly foldersMax: number;
  readonly bytesMax: number;
  /** A folder used this recently is never removed: a program may be about to read it. */
  readonly graceMs: number;
}

export const copyLimits: CopyLimits = { foldersMax: 16, bytesMax: 32 * 1024 ** 3, graceMs: 5 * 60_000 };

/** A killed download's file is removed after this. */
const leftoverMs = 24 * 3_600_000;

/** Record of the copied objects in a file beside the folder; its time is the folder's last use. */
interface CopyRecord {
  readonly files: Readonly<Record<string, { readonly etag: string; readonly bytes: number }>>;
}

const recordEnding = '.copied.json';

export const allCopies = (): string => path.join(cacheFolder(), 's3-copies');

/** Folder for local copies of a store's objects under their keys: relative paths between folders stay valid. */
export function copiesFolder({ bucket, prefix, endpoint }: S3Location): string {
  const digest = createHash('sha256')
    .update(JSON.stringify([endpoint, bucket, prefix]))
    .digest('hex');
  return path.join(allCopies(), `${bucket}-${digest.slice(0, 12)}`);
}

interface CopyOptions {
  readonly requests: S3Requests;
  /** Prefix in the bucket, ending with a slash. */
  readonly prefix: string;
  readonly folder: string;
  /** Address for people. */
  readonly uri: string;
  readonly limits: CopyLimits;
}

const copying = new Map<string, Promise<void>>();

/**
 * Updates a folder to the objects below a prefix: only missing or different ones are downloaded, and verified. Safe in
 * several processes at once.
 */
export async function copyFolder(options: CopyOptions): Promise<void> {
  const known = copying.get(options.folder);
  if (known) return known;
  const work = bringUpToDate(options).finally(() => copying.delete(options.folder));
  copying.set(options.folder, work);
  return work;
}

/** Makes the next `copyFolder` download the folder anew. */
export async function forgetCopy(folder: string): Promise<void> {
  await rm(folder + recordEnding, { force: true });
}

async function bringUpToDate({ requests, prefix, folder, uri, limits }: CopyOptions): Promise<void> {
  const listed = (await listObjects(requests, prefix)).filter(({ key }) => !isTailPart(key));
  if (listed.length === 0) return;
  try {
    await mkdir(path.dirname(folder), { recursive: true, mode: 0o700 });
    const before = await readRecord(folder);
    await writeRecord(folder, before); // in use from now on
    const files: Record<string, CopyRecord['files'][string]> = {};
    await inParallel(listed, requests.limits.partsAtOnce, async (object) => {
      const name = object.key.slice(prefix.length);
      const file = path.resolve(folder, name);
      if (!file.startsWith(folder + path.sep)) {
        throw new RatchetError('Unsupported', `${uri} holds the key ${JSON.stringify(name)}, which leads out of it.`);
      }
      const copied = before.files[name];
      const isThere =
        copied?.etag === object.etag && copied.bytes === object.bytes && (await sizeOf(file)) === object.bytes;
      const found = isThere ? copied : await fetchFile(requests, object, file);
      if (found) files[name] = found;
    });
    for (const name of Object.keys(before.files)) if (!files[name]) await rm(path.join(folder, name), { force: true });
    await writeRecord(folder, { files });
    await removeOldest(limits, folder);
  } catch (error) {
    throw diskError(folder, error);
  }
}

async function fetchFile(
  requests: S3Requests,
  object: ListedObject,
  file: string,
): Promise<CopyRecord['files'][string] | null> {
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
  for (let ask = 1; ; ask++) {
    const temporary = `${file}.tmp-${randomUUID()}`;
    try {
      const found = await getObjectToFile(requests, object.key, temporary);
      const expected = found?.metadata[metadataNames.sha256];
      const isSound = found && (expected === undefined || expected === found.sha256);
      // The object differs from the listing, or is newer. The answer is accepted once it stays the same on every try.
      if (isSound && (found.etag === object.etag || ask === asksMax)) {
        await rename(temporary, file);
        return { etag: found.etag, bytes: found.bytes };
      }
      if (ask === asksMax && !found) return null; // removed since the listing
      if (ask === asksMax) throw damagedOf(requests, object.key, expected!, found!.sha256);
    } finally {
      await rm(temporary, { force: true });
    }
    await untilAskedAgain(requests, ask);
  }
}

async function readRecord(folder: string): Promise<CopyRecord> {
  try {
    return JSON.parse(await readFile(folder + recordEnding, 'utf8')) as CopyRecord;
  } catch (error) {
    if (isErrno(error, 'ENOENT') || error instanceof SyntaxError) return { files: {} };
    throw error;
  }
}

async function writeRecord(folder: string, record: CopyRecord): Promise<void> {
  const file = folder + recordEnding;
  const temporary = `${file}.tmp-${randomUUID()}`;
  await writeFile(temporary, `${JSON.stringify(record)}\n`);
  await rename(temporary, file);
}

async function sizeOf(file: string): Promise<number | null> {
  return (await stat(file).catch(() => null))?.size ?? null;
}

/** Removes the folders used longest ago, of all stores, beyond the bounds. */
async function removeOldest({ foldersMax, bytesMax, graceMs }: CopyLimits, inUse: string): Promise<void> {
  const entries = await readdir(allCopies(), { recursive: true, withFileTypes: true });
  const records = [];
  for (const entry of entries) {
    const file = path.join(entry.parentPath, entry.name);
    if (/\.tmp-[0-9a-f-]{36}$/.test(entry.name)) await removeLeftover(file);
    if (!entry.name.endsWith(recordEnding)) continue;
    const folder = file.slice(0, -recordEnding.length);
    const [usedAt, { files }] = [(await stat(file).catch(() => null))?.mtimeMs ?? 0, await readRecord(folder)];
    records.push({ folder, usedAt, bytes: Object.values(files).reduce((sum, { bytes }) => sum + bytes, 0) });
  }
  records.sort((a, b) => b.usedAt - a.usedAt);
  let bytes = 0;
  for (const [index, record] of records.entries()) {
    bytes += record.bytes;
    const isOver = index >= foldersMax || bytes > bytesMax;
    if (!isOver || record.folder === inUse || Date.now() - record.usedAt < graceMs) continue;
    await forgetCopy(record.folder);
    await rm(record.folder, { recursive: true, force: true });
  }
}

async function removeLeftover(file: string): Promise<void> {
  const found = await stat(file).catch(() => null);
  if (found && Date.now() - found.mtimeMs > leftoverMs) await rm(file, { force: true });
}
