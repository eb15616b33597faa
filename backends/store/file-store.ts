import { createHash, randomUUID } from 'node:crypto';
import { createReadStream, type Dirent } from 'node:fs';
import {
  appendFile,
  link,
  mkdir,
  open,
  readdir,
  readlink,
  realpath,
  rename,
  rm,
  rmdir,
  stat,
  unlink,
} from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { NotAFile, openRegular, readRegular } from '../../engine/regular-file.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { damaged } from './objects.ts';
import { foldTailFiles, isLog } from './log-tail.ts';
import type { Staging, Store } from './types.ts';

/** A folder as a store: temp file, fsync, rename, fsync of the folder; `link` where only one writer may win. */
export class FileStore implements Store {
  readonly uri: string;
  readonly staging: Staging = {
    folder: (prefix) => this.#newFolder(prefix),
    seal: (prefix) => this.#seal(prefix),
    settle: (from, to) => this.#settle(from, to),
  };
  readonly #root: string;
  readonly #makesRoot: boolean;

  /** `makesRoot` false: the store was created before, so a missing root is not recreated. */
  constructor(root: string, { makesRoot = true }: { readonly makesRoot?: boolean } = {}) {
    this.#root = path.resolve(root);
    this.#makesRoot = makesRoot;
    this.uri = pathToFileURL(this.#root + path.sep).href;
  }

  async put(key: string, bytes: Uint8Array): Promise<ObjectRef> {
    const target = await this.#prepare(key);
    const temporary = await writeTemporary(key, target, [bytes]);
    await this.#putInPlace(key, temporary, target);
    return { key, sha256: sha256(bytes), bytes: bytes.byteLength };
  }

  async putFile(key: string, file: string): Promise<ObjectRef> {
    const target = await this.#prepare(key);
    const hash = createHash('sha256');
    let bytes = 0;
    const temporary = await writeTemporary(key, target, hashed());
    await this.#putInPlace(key, temporary, target);
    return { key, sha256: hash.digest('hex'), bytes };

    async function* hashed(): AsyncGenerator<Uint8Array> {
      for await (const chunk of createReadStream(file, { highWaterMark: copyBytes }) as AsyncIterable<Uint8Array>) {
        hash.update(chunk);
        bytes += chunk.byteLength;
        yield chunk;
      }
    }
  }

  async putIfAbsent(key: string, bytes: Uint8Array): Promise<{ stored: boolean; bytes: Uint8Array }> {
    const target = await this.#prepare(key);
    const temporary = await writeTemporary(key, target, [bytes]);
    try {
      await link(temporary, target);
      await sync(path.dirname(target));
      return { stored: true, bytes };
    } catch (error) {
      if (!isErrno(error, 'EEXIST')) throw diskError(key, error);
      const bytes = await this.#readAgreeing(key);
      if (bytes) return { stored: false, bytes };
      throw new RatchetError('CheckpointDamaged', `${key} in ${this.uri} was taken away while it was read.`);
    } finally {
      await unlink(temporary);
    }
  }

  async get(ref: ObjectRef): Promise<Uint8Array> {
    for (let ask = 1; ; ask++) {
      const bytes = await this.read(ref.key);
      const found = bytes && sha256(bytes);
      if (found === null || found === ref.sha256 || ask === readsMax) requireSha256(ref, this.uri, found);
      if (found === ref.sha256) return bytes!;
    }
  }

  async verify(ref: ObjectRef): Promise<void> {
    const file = await this.#inside(ref.key);
    // A file of another size has another sha256: it need not be read. 0 = only the sha256 is known.
    const about = await stat(file).catch(() => null);
    if (about?.isFile() && ref.bytes > 0 && about.size !== ref.bytes)
      throw damaged(this.uri + ref.key, `expected ${ref.bytes} bytes, found ${about.size}`);
    for (let ask = 1; ; ask++) {
      const found = await sha256OfFile(file).catch((error: unknown) => {
        throw this.#readError(ref.key, error);
      });
      if (found === null || found === ref.sha256 || ask === readsMax) return requireSha256(ref, this.uri, found);
    }
  }

  async read(key: string): Promise<Uint8Array | null> {
    try {
      const file = await this.#inside(key);
      if (isLog(key)) await foldTailFiles(file);
      return await readRegular(file);
    } catch (error) {
      if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return null;
      throw this.#readError(key, error);
    }
  }

  async list(prefix: string): Promise<string[]> {
    const folder = prefix.slice(0, prefix.lastIndexOf('/') + 1);
    const root = await this.#inside(folder);
    const files = await naming(prefix, () => filesBelow(root));
    // Thousands of them: `path.relative` would take most of the time.
    return files
      .map((file) => file.slice(this.#root.length + 1).replaceAll(path.sep, '/'))
      .filter((key) => key.startsWith(prefix))
      .sort();
  }

  async leftovers(olderThanMs: number): Promise<string[]> {
    const found: string[] = [];
    for (const entry of await readdir(this.#root, { recursive: true, withFileTypes: true })) {
      if (!entry.isFile() || !entry.name.startsWith('.tmp-')) continue;
      const file = path.join(entry.parentPath, entry.name);
      const age = Date.now() - ((await stat(file).catch(() => null))?.mtimeMs ?? Infinity);
      if (age > olderThanMs) found.push(path.relative(this.#root, file).split(path.sep).join('/'));
    }
    return found;
  }

  async removeAll(prefix: string): Promise<void> {
    const target = await this.#inside(prefix);
    await naming(prefix, () => rm(target, { recursive: true, force: true }));
  }

  async readFrom(key: string, offset: number): Promise<Uint8Array | null> {
    const target = await this.#inside(key);
    await naming(key, () => foldTailFiles(target));
    const file = await openRegular(target).catch((error: unknown) => {
      if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return null;
      throw this.#readError(key, error);
    });
    if (!file) return null;
    try {
      const { size } = await file.stat();
      if (size < offset) return null;
      const bytes = new Uint8Array(Math.min(size - offset, logBytesAtOnce));
      const { bytesRead } = await file.read(bytes, 0, bytes.length, offset);
      return bytes.subarray(0, bytesRead);
    } finally {
      await file.close();
    }
  }

  async readRange(key: string, offset: number, bytes: number): Promise<Uint8Array | null> {
    const file = await openRegular(await this.#inside(key)).catch((error: unknown) => {
      if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return null;
      throw this.#readError(key, error);
    });
    if (!file) return null;
    try {
      const { size } = await file.stat();
      const range = new Uint8Array(Math.max(0, Math.min(bytes, size - offset)));
      const { bytesRead } = await file.read(range, 0, range.length, offset);
      return range.subarray(0, bytesRead);
    } finally {
      await file.close();
    }
  }

  async append(key: string, line: string | Uint8Array): Promise<void> {
    const target = await this.#prepare(key);
    await naming(key, async () => {
      await foldTailFiles(target);
      await appendFile(target, line);
    });
  }

  async localFolder(prefix: string): Promise<string> {
    return this.#inside(prefix);
  }

  async #newFolder(prefix: string): Promise<string> {
    const folder = await this.#inside(prefix);
    await naming(prefix, () => this.#makeFolder(folder));
    return folder;
  }

  async #seal(prefix: string): Promise<void> {
    const files = await filesBelow(await this.#inside(prefix));
    const folders = new Set(files.map((file) => path.dirname(file)));
    await naming(prefix, () => Promise.all([...files, ...folders].map(sync)));
  }

  async #settle(from: string, to: string): Promise<boolean> {
    const [source, target] = [await this.#inside(from), await this.#prepare(to)];
    try {
      await rename(source, target).catch(async (error: unknown) => {
        // A folder takes the place of an empty one only, and a file that of a file.
        if (!inTheWay.some((code) => isErrno(error, code))) throw error;
        await rename(target, `${source}.replaced-${randomUUID()}`);
        await rename(source, target);
      });
    } catch (error) {
      // Gone, or on another disk than where it belongs: it is copied from wherever else it is.
      if (isErrno(error, 'ENOENT') || isErrno(error, 'EXDEV')) return false;
      throw diskError(to, error);
    }
    await sync(path.dirname(target));
    return true;
  }

  async #putInPlace(key: string, temporary: string, target: string): Promise<void> {
    try {
      await rename(temporary, target).catch(async (error: unknown) => {
        if (!isErrno(error, 'EISDIR')) throw error;
        await rmdir(target); // one that holds nothing; asking again would not move it away
        await rename(temporary, target);
      });
    } catch (error) {
      await rm(temporary, { force: true });
      const isHeld = isErrno(error, 'ENOTEMPTY') || isErrno(error, 'EEXIST') || isErrno(error, 'EISDIR');
      throw isHeld ? damaged(this.uri + key, 'expected a file, found a folder', error) : diskError(key, error);
    }
    await sync(path.dirname(target));
  }

  /** Reads an object without a known sha256 until two reads in a row agree. */
  async #readAgreeing(key: string): Promise<Uint8Array | null> {
    let before = await this.read(key);
    for (;;) {
      const now = await this.read(key);
      if (before === null || now === null || Buffer.compare(before, now) === 0) return now;
      before = now;
    }
  }

  async #prepare(key: string): Promise<string> {
    const target = await this.#inside(key);
    await naming(key, () => this.#makeFolder(path.dirname(target)));
    return target;
  }

  /** Creates folders one by one: after an unmount, `recursive` would recreate the run's folder on the disk below. */
  async #makeFolder(folder: string): Promise<void> {
    if (this.#makesRoot) return void (await mkdir(folder, { recursive: true }));
    if (folder === this.#root) return;
    try {
      await mkdir(folder);
    } catch (error) {
      if (isErrno(error, 'EEXIST')) return;
      const isMissing = isErrno(error, 'ENOENT') && path.dirname(folder) !== this.#root;
      if (!isMissing) throw error;
      await this.#makeFolder(path.dirname(folder));
      await mkdir(folder).catch((again: unknown) => {
        if (!isErrno(again, 'EEXIST')) throw again;
      });
    }
  }

  /** What stands in an object's place and is no file is damage, which asking again does not mend. */
  #readError(key: string, error: unknown): unknown {
    if (!(error instanceof NotAFile)) return diskError(key, error);
    return damaged(this.uri + key, `expected a file, found ${error.found}`, error);
  }

  /** The absolute path of a key; refuses one that leads out of the run's folder, also through a symbolic link. */
  async #inside(key: string): Promise<string> {
    const target = path.resolve(this.#root, key);
    if (target !== this.#root && !target.startsWith(this.#root + path.sep)) throw outside(key, this.uri);
    if (target === this.#root) return target;
    const [root, real] = [await nearestReal(this.#root), await nearestReal(target)];
    if (real !== root && !real.startsWith(root + path.sep)) throw outside(key, this.uri);
    return target;
  }
}

export function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Hex, without the file in memory; null when there is none. */
export async function sha256OfFile(file: string): Promise<string | null> {
  const hash = createHash('sha256');
  try {
    const handle = await openRegular(file);
    for await (const chunk of handle.createReadStream({ highWaterMark: copyBytes })) hash.update(chunk as Buffer);
  } catch (error) {
    if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return null;
    throw error;
  }
  return hash.digest('hex');
}

/** Of a log that grew by more, the rest comes with the next look. Node ends the process where 2 GiB are asked for at once. */
const logBytesAtOnce = 256 * 1024 * 1024;

/** What `rename` says where something of another kind, or a folder with something in it, is in the way. */
const inTheWay = ['ENOTEMPTY', 'EEXIST', 'EISDIR', 'ENOTDIR'];

/** How much of a file is in memory while it is copied or hashed. */
const copyBytes = 1024 * 1024;

type Chunks = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

async function writeTemporary(key: string, target: string, content: Chunks): Promise<string> {
  const temporary = path.join(path.dirname(target), `.tmp-${randomUUID()}`);
  try {
    const handle = await open(temporary, 'wx');
    try {
      for await (const chunk of content) await handle.writeFile(chunk);
      await handle.sync();
    } finally {
      await handle.close();
    }
  } catch (error) {
    await rm(temporary, { force: true });
    throw diskError(key, error);
  }
  return temporary;
}

/** A file, or a folder's names. */
async function sync(file: string): Promise<void> {
  const handle = await open(file, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Walks by itself: `readdir`'s recursion gives up altogether when one folder vanishes under it. */
async function filesBelow(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch((error: unknown) => {
    if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return [];
    throw error;
  });
  // Also what is no file: whoever reads it is told, where it would be passed over as if nothing had been stored.
  const isKept = (entry: Dirent): boolean => !entry.isDirectory() && !entry.name.startsWith('.tmp-');
  const inside = entries.filter((entry) => entry.isDirectory());
  const below = await Promise.all(inside.map((entry) => filesBelow(path.join(folder, entry.name))));
  return [...entries.filter(isKept).map((entry) => folder + path.sep + entry.name), ...below.flat()];
}

/** Where a path really leads; of one that does not exist yet, where the nearest folder above it does. */
async function nearestReal(file: string): Promise<string> {
  for (let current = file; ; current = path.dirname(current)) {
    try {
      return await realpath(current);
    } catch (error) {
      if (isErrno(error, 'ELOOP')) throw damaged(current, 'expected a file, found a link that leads to itself', error);
      const isAbsent = isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR');
      if (!isAbsent || current === path.dirname(current)) throw error;
      const dangling = await readlink(current).catch(() => null);
      if (dangling !== null) return path.resolve(path.dirname(current), dangling);
    }
  }
}

async function naming<T>(key: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw diskError(key, error);
  }
}

const fullCodes = ['ENOSPC', 'EDQUOT'];
const forbiddenCodes = ['EACCES', 'EROFS', 'EPERM'];

export function isDiskError(error: unknown): boolean {
  return [...fullCodes, ...forbiddenCodes].some((code) => isErrno(error, code));
}

/** A read with a wrong sha256 is repeated once, in case the network or memory was at fault. */
const readsMax = 2;

/** What the disk's errors mean for a run; anything else passes unchanged. */
export function diskError(key: string, cause: unknown): unknown {
  if (fullCodes.some((code) => isErrno(cause, code))) {
    return new RatchetError(
      'StoreFull',
      `No space left to write ${key}. Free some space; the run continues by itself.`,
      {
        cause,
      },
    );
  }
  if (forbiddenCodes.some((code) => isErrno(cause, code))) {
    return new RatchetError('StoreUnavailable', `The store may not be written at ${key}: ${(cause as Error).message}`, {
      cause,
    });
  }
  return cause;
}

/** Throws CheckpointDamaged unless what was found under a reference has its sha256; null = nothing was. */
export function requireSha256(ref: ObjectRef, uri: string, found: string | null): void {
  if (found === ref.sha256) return;
  if (found === null) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${ref.key} is missing from ${uri}${ref.bytes > 0 ? `; expected ${ref.bytes} bytes there` : ''}. Restore it from a copy.`,
    );
  }
  throw new RatchetError(
    'CheckpointDamaged',
    `${ref.key} in ${uri} is damaged: expected sha256 ${ref.sha256.slice(0, 12)}…, found ${found.slice(0, 12)}…. Restore it from a copy.`,
  );
}

export function outside(key: string, uri: string): RatchetError {
  return new RatchetError(
    'Unsupported',
    `${JSON.stringify(key)} leads out of ${uri}, by a link or by its name: a run reads and writes in its folder alone. Where it is a link, put the file itself there.`,
  );
}

export function isErrno(error: unknown, code: string): boolean {
  return error instanceof Error && (error as NodeJS.ErrnoException).code === code;
}
