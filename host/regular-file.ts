import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  type Stats,
  statSync,
} from 'node:fs';
import { type FileHandle, open, realpath } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';

/** Which links may lead to a file that another user may have placed. Missing: all. */
export interface Opening {
  /**
   * The file must really be in one of these folders. Links may lead from one to another but not out. The opened file itself is checked, so
   * swapping a link afterwards gains nothing.
   */
  readonly within?: readonly string[] | undefined;
  /** Roots given as real paths found before: they are not looked up again, so a link put there since leads nowhere. */
  readonly reallyWithin?: readonly string[] | undefined;
  /** Whether the file itself may be a link. The folders above it may be, within the limits of `within`. */
  readonly links?: 'followed' | 'refused' | undefined;
  /** The file must belong to this user, and no other user may read or write it. */
  readonly isPrivate?: boolean | undefined;
}

/** Node's limit for one buffer. */
const bytesReadMax = 2 ** 31 - 1;
const { O_APPEND, O_CREAT, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants;

/** A path that leads to something that cannot be read as a file: a folder, a FIFO, a device, or more than fits into memory. */
export class NotAFile extends RatchetError {
  readonly found: string;
  /** Whether it is a link that is not followed. */
  readonly isLink: boolean;

  constructor(file: string, found: string, { isLink = false, expected = 'a file' } = {}) {
    super(
      'Unsupported',
      `${file}: expected ${expected}, found ${found}. Put ${theOf(expected)} there, or name another.`,
    );
    this.found = found;
    this.isLink = isLink;
  }
}

function theOf(expected: string): string {
  return expected.replace(/^a /, 'the ');
}

/** The reason why a file cannot be read, in words. */
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

/** Opens a file for appending. A missing file is created with `mode`. */
export async function openToAppend(file: string, opening: Opening = {}, mode = 0o666): Promise<FileHandle> {
  return openedAs(file, O_WRONLY | O_APPEND | O_CREAT, { ...opening, links: 'refused' }, mode);
}

async function openedAs(file: string, access: number, opening: Opening, mode?: number): Promise<FileHandle> {
  const handle = await open(file, access | flagsOf(opening), mode).catch((error: unknown) => {
    throw whyUnopened(file, error, opening);
  });
  try {
    refuseOther(file, await handle.stat(), opening);
    await refuseOutside(file, handle.fd, opening);
    return handle;
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** The whole content of a file; throws `NotAFile` like `openRegular`, and for more than `bytesMax`. */
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

const textBytesMax = 256 * 1024 * 1024;

/** Reads UTF-8. Texts by people and programs stay far below the limit; a longer one exceeds Node's strings. */
export async function readRegularText(file: string, bytesMax = textBytesMax, opening: Opening = {}): Promise<string> {
  return (await readRegular(file, bytesMax, opening)).toString('utf8');
}

export function readRegularSync(file: string, bytesMax = bytesReadMax, opening: Opening = {}): Buffer {
  const handle = openedSync(file, opening);
  try {
    const about = fstatSync(handle);
    refuseOther(file, about, opening);
    refuseOutsideSync(file, handle, opening);
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

/** Whether other processes of this user may not look at the open files of this one: they are root's then. */
function isHidden(): boolean {
  return statSync('/proc/self/fd').uid !== process.geteuid?.();
}

/**
 * A folder that is opened once. Names resolved with `at` are in this folder, even if its path leads elsewhere by then.
 * On a system without /proc the path is used, which was checked at opening.
 */
export class OpenedFolder {
  /** The real path when it was opened. */
  readonly path: string;
  readonly #handle: FileHandle;
  readonly #at: string;

  constructor(handle: FileHandle, real: string, hasProc: boolean) {
    this.#handle = handle;
    this.path = real;
    this.#at = hasProc ? `/proc/self/fd/${handle.fd}` : real;
  }

  /** The path for a system call: of the folder, or of a name in it. */
  at(name?: string): string {
    return name === undefined ? this.#at : `${this.#at}${path.sep}${name}`;
  }

  /**
   * A path for other processes of this user, valid while the folder is open. Linux lets none of them into the open files of
   * a process that hides its secrets (`hideSecrets`), but root's: they get the folder's own path.
   */
  get atForOthers(): string {
    return this.#at === this.path || isHidden() ? this.path : `/proc/${process.pid}/fd/${this.#handle.fd}`;
  }

  get fd(): number {
    return this.#handle.fd;
  }

  /** Makes the names within durable. */
  sync(): Promise<void> {
    return this.#handle.sync();
  }

  close(): Promise<void> {
    return this.#handle.close();
  }

  /** An error of a system call, with the folder's path in its message. */
  named(error: unknown): unknown {
    if (error instanceof Error && this.#at !== this.path)
      error.message = error.message.replaceAll(new RegExp(`${this.#at}(?!\\d)`, 'g'), () => this.path);
    return error;
  }
}

/** `reallyWithin` may still be looked up: the check needs it, opening does not. */
interface FolderOpening extends Omit<Opening, 'reallyWithin'> {
  readonly reallyWithin?: Opening['reallyWithin'] | Promise<readonly string[]>;
}

/** Opens a folder that another user may have placed. Throws `NotAFile` for a link that `opening` refuses, and as Node's `open` does. */
export async function openFolder(
  folder: string,
  { reallyWithin: roots, ...opening }: FolderOpening = {},
): Promise<OpenedFolder> {
  const opened = open(folder, O_RDONLY | O_DIRECTORY | flagsOf(opening));
  const [root, found] = await Promise.allSettled([roots, opened]);
  if (found.status === 'rejected') {
    const isLink = opening.links === 'refused' && isErrno(found.reason, 'ENOTDIR', 'ELOOP');
    if (root.status === 'rejected') throw root.reason;
    throw isLink ? new NotAFile(folder, 'a link or a file', { isLink: true, expected: 'a folder' }) : found.reason;
  }
  const handle = found.value;
  try {
    if (root.status === 'rejected') throw root.reason;
    await refuseOutside(folder, handle.fd, { ...opening, reallyWithin: root.value });
    const real = pathOfHandle(handle.fd);
    return new OpenedFolder(handle, real ?? (await realpath(folder)), real !== null);
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** Opens without blocking, so that a FIFO without a writer is opened and then refused. */
function flagsOf({ links = 'followed' }: Opening): number {
  return O_NONBLOCK | (links === 'refused' ? O_NOFOLLOW : 0);
}

function whyUnopened(file: string, error: unknown, { links }: Opening): unknown {
  if (isErrno(error, 'ENXIO')) return new NotAFile(file, 'a socket, or a device or FIFO with no other end');
  if (!isErrno(error, 'ELOOP')) return error;
  if (links === 'refused') return new NotAFile(file, 'a link', { isLink: true });
  return new NotAFile(file, 'a link that leads to itself');
}

function refuseOther(file: string, about: Stats, { isPrivate = false }: Opening): void {
  if (!about.isFile()) throw new NotAFile(file, kindOf(about));
  if (!isPrivate || process.getuid === undefined) return;
  if (about.uid !== process.getuid()) throw new NotAFile(file, `a file of user ${about.uid}`);
  if ((about.mode & 0o077) !== 0)
    throw new NotAFile(file, `one that others can use (mode ${(about.mode & 0o777).toString(8)})`);
}

async function refuseOutside(file: string, opened: number, { within, reallyWithin }: Opening): Promise<void> {
  const folders = reallyWithin ?? within;
  if (folders === undefined) return;
  const roots = reallyWithin ?? (await Promise.all(folders.map((folder) => realpath(folder).catch(() => null))));
  if (!isBelow(roots, file, opened)) throw leadsOut(file, folders);
}

function refuseOutsideSync(file: string, opened: number, { within, reallyWithin }: Opening): void {
  const folders = reallyWithin ?? within;
  if (folders === undefined) return;
  if (!isBelow(reallyWithin ?? folders.map(realOrNull), file, opened)) throw leadsOut(file, folders);
}

function leadsOut(file: string, folders: readonly string[]): NotAFile {
  return new NotAFile(file, `a link that leads out of ${folders[0]}`, { isLink: true });
}

function isBelow(roots: readonly (string | null)[], file: string, opened: number): boolean {
  const real = pathOfHandle(opened) ?? pathOfInode(file, fstatSync(opened));
  if (real === null) return false;
  return roots.some((root) => root !== null && (real === root || real.startsWith(root.replace(/\/$/, '') + path.sep)));
}

/** The kernel's path of an opened file, which no swapped link changes. Null on systems without /proc. */
function pathOfHandle(handle: number): string | null {
  try {
    return readlinkSync(`/proc/self/fd/${handle}`);
  } catch {
    return null;
  }
}

/** Other systems: the real path, if the opened file is still there. */
function pathOfInode(file: string, { dev, ino }: Stats): string | null {
  const real = realOrNull(file);
  if (real === null) return null; // removed or replaced since it was opened
  const there = lstatSync(real, { throwIfNoEntry: false });
  return there?.dev === dev && there.ino === ino ? real : null;
}

function realOrNull(file: string): string | null {
  try {
    return realpathSync(file);
  } catch {
    return null;
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

function isErrno(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code));
}
