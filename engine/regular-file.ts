import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { RatchetError } from '../core/errors.ts';

/** What Node reads into one buffer. */
const bytesReadMax = 2 ** 31 - 1;
/** A FIFO that nobody writes to is opened, and refused, instead of waited for. */
const flags = constants.O_RDONLY | constants.O_NONBLOCK;

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
 * Opens a file that somebody else may have put there. Throws `NotAFile` for what is none: a FIFO would be waited for, and
 * /dev/zero has no end. What is not there, or may not be read, throws as Node's own `open` does.
 */
export async function openRegular(file: string): Promise<FileHandle> {
  const handle = await open(file, flags).catch((error: unknown) => {
    if (isErrno(error, 'ENXIO')) throw new NotAFile(file, 'a socket or a device without a driver');
    if (isErrno(error, 'ELOOP')) throw new NotAFile(file, 'a link that leads to itself');
    throw error;
  });
  try {
    refuseOther(file, await handle.stat());
    return handle;
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** All of a file; `NotAFile` as above, also for one of more than `bytesMax`. */
export async function readRegular(file: string, bytesMax = bytesReadMax): Promise<Buffer> {
  const handle = await openRegular(file);
  try {
    refuseLarge(file, await handle.stat(), bytesMax);
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}

/** As UTF-8. What people write and programs note for them stays far below this; a longer text is no string in Node. */
export async function readRegularText(file: string, bytesMax = 256 * 1024 * 1024): Promise<string> {
  return (await readRegular(file, bytesMax)).toString('utf8');
}

export function readRegularSync(file: string, bytesMax = bytesReadMax): Buffer {
  const handle = openSync(file, flags);
  try {
    const about = fstatSync(handle);
    refuseOther(file, about);
    refuseLarge(file, about, bytesMax);
    return readFileSync(handle);
  } finally {
    closeSync(handle);
  }
}

function refuseOther(file: string, about: Stats): void {
  if (!about.isFile()) throw new NotAFile(file, kindOf(about));
}

function refuseLarge(file: string, { size }: Stats, bytesMax: number): void {
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
