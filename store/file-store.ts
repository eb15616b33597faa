import { createHash, randomUUID } from 'node:crypto';
import type { Dirent } from 'node:fs';
import {
  appendFile,
  type FileHandle,
  lstat,
  mkdir,
  readdir,
  readlink,
  realpath,
  rename,
  rmdir,
  unlink,
} from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { RatchetError } from '../core/errors.ts';
import { isOthers, ownersHere } from '../host/file-owners.ts';
import {
  NotAFile,
  openFolder,
  type OpenedFolder,
  openRegular,
  openToAppend,
  readRegular,
} from '../host/regular-file.ts';
import type { ObjectRef } from '../core/rl/run-state.ts';
import { damaged, streamOf } from './objects.ts';
import { type Put, type PutDone, putThreads } from './put-threads.ts';
import { foldTail, hasTail, isLog, isTailPart, readLog, tailNameOf } from './log-tail.ts';
import type { StagedFolder, Staging, Store, StoredSize, StoredStream } from './types.ts';

interface FileStoreOptions {
  /** False: the store was created before, so a missing root is not recreated. */
  readonly makesRoot?: boolean;
  /** Throws unless the folder around the root may be used here. Returns its real path, or null if it is not checked. */
  readonly requirePlace?: () => Promise<string | null>;
}

/**
 * A folder as a store: temp file, fsync, rename, fsync of the folder; `link` if only one writer may win. Another user
 * may rearrange the folder at any moment, so a file or folder is opened once, checked to be inside, and used through
 * its handle.
 */
export class FileStore implements Store {
  readonly uri: string;
  readonly staging: Staging = {
    folder: (prefix) => this.#newFolder(prefix),
    seal: (prefix) => this.#seal(prefix),
    settle: (from, to) => this.#settle(from, to),
  };
  readonly #root: string;
  readonly #makesRoot: boolean;
  readonly #requirePlace: () => Promise<string | null>;

  constructor(root: string, { makesRoot = true, requirePlace = () => Promise.resolve(null) }: FileStoreOptions = {}) {
    this.#root = path.resolve(root);
    this.#makesRoot = makesRoot;
    this.#requirePlace = requirePlace;
    this.uri = pathToFileURL(this.#root + path.sep).href;
  }

  async put(key: string, bytes: Uint8Array): Promise<ObjectRef> {
    return this.#replace(key, bytes);
  }

  async putFile(key: string, file: string, within = [path.dirname(file)]): Promise<ObjectRef> {
    const source = await openRegular(file, { within });
    try {
      return await this.#replace(key, source.fd);
    } finally {
      await source.close();
    }
  }

  async putIfAbsent(key: string, bytes: Uint8Array): Promise<{ stored: boolean; bytes: Uint8Array }> {
    const { isStored: stored } = await this.#put(key, { content: bytes, ifAbsent: true });
    if (stored) return { stored, bytes };
    const found = await this.#readAgreeing(key);
    if (found) return { stored, bytes: found };
    throw new RatchetError('CheckpointDamaged', `${key} in ${this.uri} was taken away while it was read.`);
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
    for (let ask = 1; ; ask++) {
      const found = await this.#reading(ref.key, async (file) => {
        const { size } = await file.stat();
        // A file of another size has another sha256, so it need not be read. 0 = only the sha256 is known.
        if (ref.bytes > 0 && size !== ref.bytes)
          throw damaged(this.uri + ref.key, `expected ${ref.bytes} bytes, found ${size}`);
        return sha256OfHandle(file);
      });
      if (found === null || found === ref.sha256 || ask === readsMax) return requireSha256(ref, this.uri, found);
    }
  }

  async read(key: string): Promise<Uint8Array | null> {
    return this.#told(key, null, async () => {
      const target = this.#pathOf(key);
      const opening = { reallyWithin: [await this.#realRoot(key)] };
      return isLog(key) ? readLog(target, opening) : readRegular(target, undefined, opening);
    });
  }

  async list(prefix: string): Promise<string[]> {
    const below = prefix.slice(0, prefix.lastIndexOf('/') + 1);
    const found: string[] = [];
    await this.#told(prefix, null, () =>
      this.#walk(below, (_, key, entry) => {
        // Includes entries that are no files: their reader gets an error, while skipping them would look like missing
        // data.
        if (entry.name.startsWith('.tmp-') || isTailPart(key) || !key.startsWith(prefix)) return;
        found.push(key);
      }),
    );
    return found.sort();
  }

  async *sizes(prefix: string): AsyncGenerator<StoredSize> {
    const below = prefix.slice(0, prefix.lastIndexOf('/') + 1);
    let found: StoredSize[] = [];
    try {
      const piece = this.#walkPieces(below, async (folder, key, entry) => {
        if (!key.startsWith(prefix)) return;
        const about = await lstat(folder.at(entry.name)).catch(unless('ENOENT'));
        if (about) found.push({ key, bytes: about.size, putAtMs: about.mtimeMs });
      });
      for await (const _ of piece) {
        yield* found;
        found = [];
      }
    } catch (error) {
      const told = await this.#whatIsWrong(prefix, error);
      if (told !== error || !(isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR'))) throw told;
    }
  }

  async stream(key: string): Promise<StoredStream | null> {
    return this.#told(key, null, async () => {
      const opening = { reallyWithin: [await this.#realRoot(key)] };
      const target = this.#pathOf(key);
      const whole = isLog(key) && (await hasTail(target, opening)) ? await readLog(target, opening) : null;
      if (whole !== null) return streamOf(whole);
      const file = await openRegular(target, opening);
      try {
        const { size } = await file.stat();
        return { bytes: size, content: piecesOf(file, size, this.uri + key) };
      } catch (error) {
        await file.close();
        throw error;
      }
    });
  }

  async leftovers(olderThanMs: number): Promise<string[]> {
    const found: string[] = [];
    await this.#walk('', async (folder, key, entry) => {
      if (!entry.isFile() || !entry.name.startsWith('.tmp-')) return;
      const age = Date.now() - ((await lstat(folder.at(entry.name)).catch(() => null))?.mtimeMs ?? Infinity);
      if (age > olderThanMs) found.push(key);
    });
    return found;
  }

  async removeAll(prefix: string): Promise<void> {
    await this.#told(prefix, undefined, async () => {
      const target = this.#pathOf(prefix);
      const isRoot = target === this.#root;
      const opened = isRoot ? target : path.dirname(target);
      const folder = await openFolder(opened, { reallyWithin: [await this.#realRoot(prefix)] });
      try {
        if (isRoot) for (const name of await readdir(folder.at())) await removeEntry(folder, name);
        else await removeEntry(folder, path.basename(target));
        // Lines of a removed log would be read as another's.
        if (!isRoot && isLog(prefix)) await removeEntry(folder, tailNameOf(path.basename(target)));
      } catch (error) {
        throw folder.named(error);
      } finally {
        await folder.close();
      }
      if (isRoot) await rmdir(target).catch(unless('ENOENT', 'ENOTDIR')); // a link to it stays
    });
  }

  async readFrom(key: string, offset: number): Promise<Uint8Array | null> {
    return this.#told(key, null, async () => {
      const target = this.#pathOf(key);
      const opening = { reallyWithin: [await this.#realRoot(key)] };
      return readLog(target, opening, { offset, bytesMax: logBytesAtOnce });
    });
  }

  async readRange(key: string, offset: number, bytes: number): Promise<Uint8Array | null> {
    return this.#reading(key, async (file) => {
      const { size } = await file.stat();
      const range = new Uint8Array(Math.max(0, Math.min(bytes, size - offset)));
      const { bytesRead } = await file.read(range, 0, range.length, offset);
      return range.subarray(0, bytesRead);
    });
  }

  async append(key: string, line: string | Uint8Array): Promise<void> {
    await this.#inFolderOf(key, async (folder, name) => {
      const log = await openToAppend(folder.at(name));
      try {
        const folded = await foldTail(folder, name, log);
        if (folded !== null) await removeEntry(folder, folded);
        await appendFile(log, line);
      } finally {
        await log.close();
      }
    });
  }

  async localFolder(prefix: string): Promise<string> {
    return this.#inside(prefix);
  }

  async #newFolder(prefix: string): Promise<StagedFolder> {
    const folder = this.#pathOf(prefix);
    try {
      const opened = await this.#openMaking(folder, prefix);
      if (process.platform === 'linux' && opened.atForOthers === opened.path && isOthers(opened.path)) {
        await opened.close();
        throw replaceable(folder);
      }
      return { at: opened.atForOthers, path: folder, close: () => opened.close() };
    } catch (error) {
      throw await this.#whatIsWrong(prefix, error);
    }
  }

  async #seal(prefix: string): Promise<void> {
    const folder = this.#pathOf(prefix);
    const opening = { reallyWithin: [await this.#realRoot(prefix)] };
    const folders = new Set([folder]);
    try {
      await this.#walk(`${path.relative(this.#root, folder).split(path.sep).join('/')}/`, async (_, key) => {
        const file = this.#pathOf(key);
        folders.add(path.dirname(file));
        await syncAndClose(await openRegular(file, opening));
      });
      for (const each of folders) await syncAndClose(await openFolder(each, opening));
    } catch (error) {
      throw await this.#whatIsWrong(prefix, error);
    }
  }

  async #settle(from: string, to: string): Promise<boolean> {
    const source = this.#pathOf(from);
    return this.#inFolderOf(to, async (folder, name) => {
      let waiting: OpenedFolder;
      try {
        waiting = await openFolder(path.dirname(source), { reallyWithin: [await this.#realRoot(from)] });
      } catch (error) {
        if (isErrno(error, 'ENOENT')) return false;
        throw await this.#whatIsWrong(from, error);
      }
      const [here, target] = [waiting.at(path.basename(source)), folder.at(name)];
      try {
        await rename(here, target).catch(async (error: unknown) => {
          // A folder can only replace an empty one, and a file only a file.
          if (!inTheWay.some((code) => isErrno(error, code))) throw error;
          await rename(target, `${here}.replaced-${randomUUID()}`);
          await rename(here, target);
        });
      } catch (error) {
        // Gone, or on another disk than its place: it is copied from its other location.
        if (isErrno(error, 'ENOENT') || isErrno(error, 'EXDEV')) return false;
        throw waiting.named(error);
      } finally {
        await waiting.close();
      }
      await folder.sync();
      return true;
    });
  }

  async #replace(key: string, content: Put['content']): Promise<ObjectRef> {
    const { sha256, bytes } = await this.#put(key, { content, ifAbsent: false });
    return { key, sha256, bytes };
  }

  #put(key: string, { content, ifAbsent }: Pick<Put, 'content' | 'ifAbsent'>): Promise<PutDone> {
    return this.#inFolderOf(key, async (folder, name) => {
      try {
        return await putThreads.put({ at: folder.at(), folder: folder.fd, name, content, ifAbsent });
      } catch (error) {
        const isHeld = ['ENOTEMPTY', 'EEXIST', 'EISDIR'].some((code) => isErrno(error, code));
        throw isHeld ? damaged(this.uri + key, 'expected a file, found a folder', error) : error;
      }
    });
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

  /** Runs `work` in the folder of a key, which is created if missing. */
  async #inFolderOf<T>(key: string, work: (folder: OpenedFolder, name: string) => Promise<T>): Promise<T> {
    const target = this.#pathOf(key);
    if (target === this.#root) throw outside(key, this.uri);
    let found: { readonly value: T };
    try {
      const folder = await this.#openMaking(path.dirname(target), key);
      try {
        found = { value: await work(folder, path.basename(target)) };
      } catch (error) {
        throw folder.named(error);
      } finally {
        await folder.close();
      }
    } catch (error) {
      throw await this.#whatIsWrong(key, error);
    }
    return found.value;
  }

  /** Opens a key for reading; null if it does not exist. */
  async #reading<T>(key: string, work: (file: FileHandle) => Promise<T>): Promise<T | null> {
    return this.#told(key, null, async () => {
      const file = await openRegular(this.#pathOf(key), { reallyWithin: [await this.#realRoot(key)] });
      try {
        return await work(file);
      } finally {
        await file.close();
      }
    });
  }

  /** Runs `work` and names the key in its errors; `absent` if the key does not exist. */
  async #told<T, A>(key: string, absent: A, work: () => Promise<T>): Promise<T | A> {
    try {
      return await work();
    } catch (error) {
      const told = await this.#whatIsWrong(key, error);
      if (told === error && (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR'))) return absent;
      throw told;
    }
  }

  /** Calls `each` for all files below a prefix. A folder that vanishes meanwhile is skipped. */
  async #walk(prefix: string, each: EachFile): Promise<void> {
    for await (const _ of this.#walkPieces(prefix, each));
  }

  /** The same, some folders at a time. */
  async *#walkPieces(prefix: string, each: EachFile): AsyncGenerator<void> {
    const opening = { reallyWithin: [await this.#realRoot(prefix)] };
    let waiting = [prefix];
    while (waiting.length > 0) {
      const next: string[] = [];
      const visit = async (below: string): Promise<void> => {
        const folder = await openFolder(
          this.#pathOf(below),
          below === prefix ? opening : { ...opening, links: 'refused' },
        );
        try {
          for (const entry of await readdir(folder.at(), { withFileTypes: true })) {
            if (entry.isDirectory()) next.push(`${below}${entry.name}/`);
            else await each(folder, below + entry.name, entry);
          }
        } catch (error) {
          throw folder.named(error);
        } finally {
          await folder.close();
        }
      };
      for (let at = 0; at < waiting.length; at += foldersAtOnce) {
        const piece = waiting.slice(at, at + foldersAtOnce);
        await Promise.all(piece.map((below) => visit(below).catch(unless(...(below === prefix ? [] : ['ENOENT'])))));
        yield;
      }
      waiting = next;
    }
  }

  /** Creates folders one by one: after an unmount, `recursive` would recreate the run's folder on the disk below. */
  async #openMaking(folder: string, key: string): Promise<OpenedFolder> {
    try {
      // The check needs the root, opening does not.
      return await openFolder(folder, { reallyWithin: this.#realRoot(key).then((root) => [root]) });
    } catch (error) {
      if (!isErrno(error, 'ENOENT')) throw error;
      if (folder === this.#root) {
        if (!this.#makesRoot) throw error;
        await this.#makeRoot();
      } else {
        const above = await this.#openMaking(path.dirname(folder), key);
        try {
          await mkdir(above.at(path.basename(folder))).catch(unless('EEXIST'));
        } catch (failure) {
          throw above.named(failure);
        } finally {
          await above.close();
        }
      }
      return openFolder(folder, { reallyWithin: [await this.#realRoot(key)] });
    }
  }

  async #makeRoot(): Promise<void> {
    const place = await this.#requirePlace();
    const above = path.dirname(this.#root);
    if (place === null) return void (await mkdir(this.#root, { recursive: true }));
    await mkdir(above, { recursive: true });
    const folder = await openFolder(above, { reallyWithin: [place] });
    try {
      await mkdir(folder.at(path.basename(this.#root))).catch(unless('EEXIST'));
    } catch (error) {
      throw folder.named(error);
    } finally {
      await folder.close();
    }
  }

  /** Translates a disk error for a key. A refused link is named with its target, even a dangling one. */
  async #whatIsWrong(key: string, error: unknown): Promise<unknown> {
    if (error instanceof NotAFile) {
      if (error.isLink) return outside(key, this.uri);
      return damaged(this.uri + key, `expected a file, found ${error.found}`, error);
    }
    if (['ENOENT', 'ENOTDIR', 'ELOOP'].some((code) => isErrno(error, code))) {
      const failure = await this.#inside(key).catch((reason: unknown) => reason);
      if (failure instanceof RatchetError) return failure;
    }
    return diskError(key, error);
  }

  /**
   * The real path of the run's folder, which opened files must be in. The folder may be reached through links. A link in its own place
   * counts only if this user or root made it: in a shared folder, others could lead the run into this user's files with one.
   */
  async #realRoot(key: string): Promise<string> {
    const place = await this.#requirePlace();
    const real = await realpath(this.#root).catch((error: unknown) => {
      if (isErrno(error, 'ELOOP'))
        throw damaged(this.#root, 'expected a folder, found a link that leads to itself', error);
      throw error;
    });
    if (real === (place === null ? this.#root : path.join(place, path.basename(this.#root)))) return real;
    const folder = await realpath(path.dirname(this.#root));
    if (real === path.join(folder, path.basename(this.#root)) && place === null) return real;
    const { uid } = await lstat(this.#root);
    if (ownersHere(uid).has(uid) && (place === null || folder === place)) return real;
    throw new RatchetError(
      'Unsupported',
      `${key} in ${this.uri}: expected the run's folder there, or a link to it that this user made, found a link of user ${uid}. Put the folder itself there.`,
    );
  }

  #pathOf(key: string): string {
    const target = path.resolve(this.#root, key);
    if (target !== this.#root && !target.startsWith(this.#root + path.sep)) throw outside(key, this.uri);
    return target;
  }

  /** The absolute path of a key; throws for one that leads out of the run's folder, even through a symbolic link. */
  async #inside(key: string): Promise<string> {
    const target = this.#pathOf(key);
    const root = await this.#realRoot(key).catch((error: unknown) => {
      if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return nearestReal(this.#root);
      throw error;
    });
    if (target === this.#root) return target;
    const real = await nearestReal(target);
    if (real !== root && !real.startsWith(root + path.sep)) throw outside(key, this.uri);
    return target;
  }
}

type EachFile = (folder: OpenedFolder, key: string, entry: Dirent) => Promise<void> | void;

/** So many bytes from the beginning of an opened file, which is closed in any case. */
async function* piecesOf(file: FileHandle, size: number, where: string): AsyncGenerator<Uint8Array> {
  try {
    for (let at = 0; at < size;) {
      const piece = new Uint8Array(Math.min(copyBytes, size - at));
      const { bytesRead } = await file.read(piece, 0, piece.length, at);
      if (bytesRead === 0) throw damaged(where, `expected ${size} bytes, found ${at}: it was cut while it was read`);
      yield piece.subarray(0, bytesRead);
      at += bytesRead;
    }
  } finally {
    await file.close();
  }
}

export function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/**
 * Hex digest, computed without the file in memory; null when there is none. A link that leads out of the file's folder
 * is refused.
 */
export async function sha256OfFile(file: string): Promise<string | null> {
  try {
    const handle = await openRegular(file, { within: [path.dirname(file)] });
    try {
      return await sha256OfHandle(handle);
    } finally {
      await handle.close();
    }
  } catch (error) {
    if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return null;
    throw error;
  }
}

async function sha256OfHandle(handle: FileHandle): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of handle.createReadStream({ highWaterMark: copyBytes, autoClose: false, start: 0 }))
    hash.update(chunk as Buffer);
  return hash.digest('hex');
}

/** A log that grew by more is read in several turns. Node aborts the process on a request for 2 GiB at once. */
const logBytesAtOnce = 256 * 1024 * 1024;

/** Errors of `rename` when something of another kind, or a non-empty folder, is at the target. */
const inTheWay = ['ENOTEMPTY', 'EEXIST', 'EISDIR', 'ENOTDIR'];

/** Bytes of a file in memory while it is hashed. */
const copyBytes = 1024 * 1024;

/** Bound on open folders while keys are listed. */
const foldersAtOnce = 32;

async function syncAndClose(opened: Pick<FileHandle, 'sync' | 'close'>): Promise<void> {
  try {
    await opened.sync();
  } finally {
    await opened.close();
  }
}

/** Removes a name from a folder with its content. `rm` would enter a folder that becomes a link meanwhile. */
async function removeEntry(folder: OpenedFolder, name: string): Promise<void> {
  try {
    await unlink(folder.at(name));
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return;
    if (!isErrno(error, 'EISDIR') && !isErrno(error, 'EPERM')) throw error;
    const inner = await openFolder(folder.at(name), { links: 'refused' }).catch((reason: unknown) => {
      if (isErrno(reason, 'ENOENT')) return null; // another process removed it
      throw error;
    });
    if (inner === null) return;
    try {
      for (const below of await readdir(inner.at())) await removeEntry(inner, below);
    } finally {
      await inner.close();
    }
    await rmdir(folder.at(name)).catch(unless('ENOENT'));
  }
}

/** Throws an error unless it has one of these codes. */
function unless(...codes: string[]): (error: unknown) => undefined {
  return (error) => {
    if (!codes.some((code) => isErrno(error, code))) throw error;
    return undefined;
  };
}

/** The real target of a path; for a missing one, that of the nearest folder above. */
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

const fullCodes = ['ENOSPC', 'EDQUOT'];
const forbiddenCodes = ['EACCES', 'EROFS', 'EPERM'];

export function isDiskError(error: unknown): boolean {
  return [...fullCodes, ...forbiddenCodes].some((code) => isErrno(error, code));
}

/** A read with a wrong sha256 is repeated once, in case the network or memory was at fault. */
const readsMax = 2;

/** Maps the disk's errors for a run; any other error passes unchanged. */
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

/** Throws CheckpointDamaged unless the object under a reference has its sha256; null = there is no object. */
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

/** A program would write by a path, which may lead elsewhere by then. */
function replaceable(folder: string): RatchetError {
  return new RatchetError(
    'Unsupported',
    `${folder}: expected a folder that other users of this machine cannot replace, since a program of its own writes weights there; found one that some can, or a folder above it. Take their right to write away (chmod go-w), or name another store.`,
  );
}

export function outside(key: string, uri: string): RatchetError {
  return new RatchetError(
    'Unsupported',
    `${JSON.stringify(key)} leads out of ${uri}: expected something in the run's folder, found a link or a name that leads elsewhere. Where it is a link, put the file itself there.`,
  );
}

export function isErrno(error: unknown, code: string): boolean {
  return error instanceof Error && (error as NodeJS.ErrnoException).code === code;
}
