import { closeSync, constants, fstatSync, lstatSync, openSync, readFileSync, realpathSync, type Stats } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';

/** Which links may lead to a file that another user may have placed. Missing: all. */
export interface Opening {
  /**
   * The file must really be in one of these folders. Links may lead from one to another but not out. The opened file itself is checked, so
   * swapping a link afterwards gains nothing.
   */
  readonly within?: readonly string[] | undefined;
  /** Whether the file itself may be a link. The folders above it may be, within the limits of `within`. */
  readonly links?: 'followed' | 'refused' | undefined;
  /** The file must belong to this user, and nobody else may read or write it. */
  readonly isPrivate?: boolean | undefined;
}

/** What Node reads into one buffer. */
const bytesReadMax = 2 ** 31 - 1;
const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;

/** A path that leads to something that cannot be read as a file: a folder, a FIFO, a device, or more than fits into memory. */
export class NotAFile extends RatchetError {
  /** In words. */
  readonly found: string;

  constructor(file: string, found: string) {
    super('Unsupported', `${file}: expected a file, found ${found}. Put the file there, or name another.`);
    this.found = found;
  }
}

/** Why a file cannot be read, in words. */
export function whyUnreadable(cause: unknown): string {
  if (cause instanceof NotAFile) return `it is ${cause.found}`;
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : String(cause);
  if (code === 'ENOENT') return 'there is no such file';
  return `it cannot be read (${code})`;
}

/**
 * Opens a file that another user may have placed. All reading goes through this handle, so the file cannot be swapped. Throws `NotAFile` if
 * it is not a regular file (a FIFO would block, /dev/zero never ends) or a link that `opening` refuses. A missing or unreadable file throws
 * as Node's `open` does.
 */
export async function openRegular(file: string, opening: Opening = {}): Promise<FileHandle> {
  return openedAs(file, O_RDONLY, opening);
}

/** The same for appending. A missing file is created with `mode`. */
export async function openToAppend(file: string, opening: Opening = {}, mode = 0o666): Promise<FileHandle> {
  return openedAs(file, O_WRONLY | O_APPEND | O_CREAT, { ...opening, links: 'refused' }, mode);
}

async function openedAs(file: string, access: number, opening: Opening, mode?: number): Promise<FileHandle> {
  const handle = await open(file, access | flagsOf(opening), mode).catch((error: unknown) => {
    throw whyUnopened(file, error, opening);
  });
  try {
    refuseOther(file, await handle.stat(), opening);
    return handle;
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** All of a file; `NotAFile` as above, also for one of more than `bytesMax`. */
export async function readRegular(file: string, bytesMax = bytesReadMax, opening: Opening = {}): Promise<Buffer> {
  const handle = await openRegular(file, opening);
  try {
    const { size } = await handle.stat();
    refuseLarge(file, size, bytesMax);
    const bytes = await handle.readFile();
    refuseLarge(file, bytes.length, bytesMax); // the file may have grown since
    return bytes;
  } finally {
    await handle.close();
  }
}

/** Bytes that a text takes. */
const textBytesMax = 256 * 1024 * 1024;

/** As UTF-8. What people write and programs note for them stays far below this; a longer text is no string in Node. */
export async function readRegularText(file: string, bytesMax = textBytesMax, opening: Opening = {}): Promise<string> {
  return (await readRegular(file, bytesMax, opening)).toString('utf8');
}

export function readRegularSync(file: string, bytesMax = bytesReadMax, opening: Opening = {}): Buffer {
  const handle = openedSync(file, opening);
  try {
    const about = fstatSync(handle);
    refuseOther(file, about, opening);
    refuseLarge(file, about.size, bytesMax);
    return readFileSync(handle);
  } finally {
    closeSync(handle);
  }
}

function openedSync(file: string, opening: Opening): number {
  try {
    return openSync(file, O_RDONLY | flagsOf(opening));
  } catch (error) {
    throw whyUnopened(file, error, opening);
  }
}

/** Opens without blocking, so that a FIFO without a writer is opened and then refused. */
function flagsOf({ links = 'followed' }: Opening): number {
  return O_NONBLOCK | (links === 'refused' ? O_NOFOLLOW : 0);
}

function whyUnopened(file: string, error: unknown, { links }: Opening): unknown {
  if (isErrno(error, 'ENXIO')) return new NotAFile(file, 'a socket, or a device or FIFO with no other end');
  if (!isErrno(error, 'ELOOP')) return error;
  return new NotAFile(file, links === 'refused' ? 'a link' : 'a link that leads to itself');
}

function refuseOther(file: string, about: Stats, { within, isPrivate = false }: Opening): void {
  if (!about.isFile()) throw new NotAFile(file, kindOf(about));
  if (isPrivate && process.getuid !== undefined && about.uid !== process.getuid())
    throw new NotAFile(file, `a file of user ${about.uid}`);
  if (isPrivate && process.getuid !== undefined && (about.mode & 0o077) !== 0)
    throw new NotAFile(file, `one that others can use (mode ${(about.mode & 0o777).toString(8)})`);
  if (within !== undefined && !isWithin(within, file, about))
    throw new NotAFile(file, `a link that leads out of ${within[0]}`);
}

/** Whether the opened file is really in one of the folders: its real path there must name the same inode. */
function isWithin(folders: readonly string[], file: string, { dev, ino }: Stats): boolean {
  try {
    const real = realpathSync(file);
    const roots = folders.map((folder) => realpathSync(folder) + path.sep);
    if (!roots.some((root) => real.startsWith(root))) return false;
    const there = lstatSync(real);
    return there.dev === dev && there.ino === ino;
  } catch {
    return false; // removed or replaced since it was opened
  }
}

function refuseLarge(file: string, size: number, bytesMax: number): void {
  if (size > bytesMax) throw new NotAFile(file, `${size} bytes, more than the ${bytesMax} that are read`);
}

function kindOf(about: Stats): string {
  if (about.isDirectory()) return 'a folder';
  if (about.isFIFO()) return 'a FIFO';
  if (about.isSocket()) return 'a socket';
  return 'a device';
}

function isErrno(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code;
}
