import { ByteReader, CutOff } from './byte-reader.ts';
import { blockBytes, type TarEntry, writeTar } from './write-tar.ts';

/** Reads a tar of somebody else's: every name, size and link in it may be meant to do harm. */

/** `failed`: its bytes are no tar, or too few or too many. `refused`: it holds what is not taken. */
export class TarTrouble extends Error {
  readonly kind: 'failed' | 'refused';

  constructor(kind: 'failed' | 'refused', message: string) {
    super(message);
    this.name = 'TarTrouble';
    this.kind = kind;
  }
}

export interface TarBounds {
  /** The archive's name in messages, such as `an archive of weights`. */
  readonly what: string;
  /** Bytes of all files together. */
  readonly bytesMax: number;
  readonly entriesMax: number;
  /** `files`: plain files alone; `tree`: also folders, links, and second names of files before them. */
  readonly takes: 'files' | 'tree';
}

/** Limit of a header that holds a name or a size which does not fit into its field. */
const extraBytesMax = 64 * 1024;
/** The longest name that file systems take. */
const nameBytesMax = 255;
/** Folders within folders: more are no work of a program's, and cost whoever makes them. */
const depthMax = 64;

/**
 * Its entries, with names that stay inside. No entry has the name of another, is below a file or a link, or is written
 * through one; so wherever an empty folder takes them, in this order, nothing outside of it changes. Names and sizes may
 * be in GNU's or pax's form, whose files have no limit of 8 GiB. The content of one has to be read before the next.
 */
export async function* readTar(tar: ByteReader, bounds: TarBounds): AsyncGenerator<TarEntry> {
  const names = new Names(bounds);
  let extra: Extra = {};
  let total = 0;
  while ((await tar.peek(blockBytes)).some((byte) => byte !== 0)) {
    const header = await tar.take(blockBytes);
    requireHeader(header, bounds);
    const type = String.fromCharCode(header[156] ?? 0);
    const isExtra = type === 'x' || type === 'L' || type === 'K' || type === 'g';
    const size = sizeOf(header, isExtra ? undefined : extra.size, bounds);
    const padding = (blockBytes - (size % blockBytes)) % blockBytes;
    total += size;
    if (total > bounds.bytesMax)
      throw new TarTrouble('failed', `expected at most ${bounds.bytesMax} bytes of files, got more.`);
    if (isExtra) {
      if (size > extraBytesMax) throw refused(bounds, `header ${type}`, `larger than ${extraBytesMax} bytes`);
      const content = await tar.take(size);
      if (type === 'L') extra = { ...extra, name: text(content) };
      if (type === 'K') extra = { ...extra, target: text(content) };
      if (type === 'x') extra = { ...extra, ...paxFields(content) };
    } else {
      const given = { name: extra.name ?? nameIn(header), target: extra.target ?? text(header.subarray(157, 257)) };
      extra = {};
      const content = new Content(tar, size);
      const entry = entryOf(given, type, header, content, names, bounds);
      if (entry !== null) yield entry;
      await content.skipRest();
    }
    await tar.skip(padding);
  }
  // A block of zeros is its end: without it, files may be missing.
  if ((await tar.peek(blockBytes)).length < blockBytes) throw new CutOff();
}

/**
 * The same entries as a tar of our own, whose form no two readers take differently. It is read to its end, where its
 * writer may still fail. Rejects with `TarTrouble`.
 */
export async function* cleanTar(
  bytes: AsyncIterable<Uint8Array>,
  bounds: { readonly bytesMax: number; readonly where: string },
): AsyncGenerator<Uint8Array> {
  const tar = new ByteReader(bytes);
  try {
    yield* writeTar(readTar(tar, { what: 'a saved folder', takes: 'tree', entriesMax: treeEntriesMax, ...bounds }));
    for await (const _ of tar.rest());
  } catch (error) {
    if (error instanceof CutOff) throw new TarTrouble('failed', `${bounds.where}: it is cut off.`);
    throw error instanceof TarTrouble ? new TarTrouble(error.kind, `${bounds.where}: ${error.message}`) : error;
  } finally {
    await tar.close();
  }
}

/** Files of a work folder: a checkout with the packages that it builds on. */
export const treeEntriesMax = 500_000;

interface Extra {
  readonly name?: string;
  readonly target?: string;
  readonly size?: number;
}

/** null = left out: a folder where only files count, a pipe in a tree. */
function entryOf(
  { name, target }: { readonly name: string; readonly target: string },
  type: string,
  header: Buffer,
  content: Content,
  names: Names,
  bounds: TarBounds,
): TarEntry | null {
  const facts = { mode: octalIn(header, 100, 8) & 0o777, modifiedS: octalIn(header, 136, 12) };
  const isTree = bounds.takes === 'tree';
  if (type === '5') {
    if (!isTree || isTop(name)) return null;
    return { is: 'folder', name: names.addFolder(name), ...facts };
  }
  if (type === '0' || type === '\0' || type === '7')
    return { is: 'file', name: names.add(name, 'file'), ...facts, size: content.size, content };
  if (!isTree) throw refused(bounds, name, 'no plain file');
  if (type === '2') {
    if (target === '' || target.includes('\0')) throw refused(bounds, name, 'a link to nothing');
    return { is: 'link', name: names.add(name, 'link'), ...facts, target };
  }
  if (type === '1') return { is: 'same', target: names.fileOf(target, name), name: names.add(name, 'file'), ...facts };
  if (type === '6') return null;
  throw refused(bounds, name, 'a device, or of no known kind');
}

/** The names so far: what is a file, a link, a folder. */
class Names {
  readonly #leaves = new Map<string, 'file' | 'link'>();
  readonly #folders = new Set<string>();
  readonly #bounds: TarBounds;
  #count = 0;

  constructor(bounds: TarBounds) {
    this.#bounds = bounds;
  }

  add(name: string, is: 'file' | 'link'): string {
    const clean = this.#counted(name);
    if (this.#leaves.has(clean) || this.#folders.has(clean))
      throw refused(this.#bounds, name, 'a second file of its name');
    this.#enter(clean, name);
    this.#leaves.set(clean, is);
    return clean;
  }

  /** A folder may come again, and after what is in it. */
  addFolder(name: string): string {
    const clean = this.#counted(withoutSlashes(name));
    if (this.#leaves.has(clean)) throw refused(this.#bounds, name, 'a second file of its name');
    this.#enter(clean, name);
    this.#folders.add(clean);
    return clean;
  }

  /** The file that a hard link is another name of; it has to be there already. */
  fileOf(target: string, name: string): string {
    const clean = cleanName(target, this.#bounds);
    if (this.#leaves.get(clean) !== 'file') throw refused(this.#bounds, name, `a link to "${target.slice(0, 100)}", which is no file before it`); // prettier-ignore
    return clean;
  }

  #counted(name: string): string {
    const { entriesMax } = this.#bounds;
    this.#count += 1;
    if (this.#count > entriesMax) throw refused(this.#bounds, name, `one file too many (${entriesMax} are read)`);
    return cleanName(name, this.#bounds);
  }

  #enter(clean: string, name: string): void {
    for (let at = parentOf(clean); at !== null; at = parentOf(at)) {
      if (this.#leaves.has(at)) throw refused(this.#bounds, name, 'below a file or a link');
      if (this.#folders.has(at)) return;
      this.#folders.add(at);
    }
  }
}

function parentOf(name: string): string | null {
  const slash = name.lastIndexOf('/');
  return slash < 0 ? null : name.slice(0, slash);
}

/** The content of one entry, read once. */
class Content implements AsyncIterable<Uint8Array> {
  readonly size: number;
  readonly #tar: ByteReader;
  #left: number;

  constructor(tar: ByteReader, size: number) {
    this.#tar = tar;
    this.size = size;
    this.#left = size;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for await (const part of this.#tar.stream(this.#left)) {
      this.#left -= part.length;
      yield part;
    }
  }

  async skipRest(): Promise<void> {
    await this.#tar.skip(this.#left);
    this.#left = 0;
  }
}

/** The sum over a header's bytes, its own field read as spaces. Older writers added signed bytes. */
function requireHeader(header: Buffer, { what }: TarBounds): void {
  const said = Number.parseInt(text(header.subarray(148, 156)).trim(), 8);
  const summed = header.map((byte, i) => (i >= 148 && i < 156 ? 0x20 : byte));
  const unsigned = summed.reduce((sum, byte) => sum + byte, 0);
  const signed = summed.reduce((sum, byte) => sum + (byte > 127 ? byte - 256 : byte), 0);
  if (said === unsigned || said === signed) return;
  throw new TarTrouble('failed', `expected ${what}, got other bytes.`);
}

/** Octal digits; or, where the first bit is set, a binary number (GNU, beyond 8 GiB); or what pax said before. */
function sizeOf(header: Buffer, paxSize: number | undefined, { bytesMax }: TarBounds): number {
  const field = header.subarray(124, 136);
  const written = text(field).trim();
  const isBinary = (field[0]! & 0x80) !== 0;
  const size =
    paxSize ??
    (isBinary ? binaryIn(field) : /^[0-7]*$/.test(written) ? Number.parseInt(written || '0', 8) : Number.NaN);
  if (size >= 0 && size <= bytesMax) return size;
  throw new TarTrouble(
    'failed',
    `expected the size of a file in the archive, from 0 to ${bytesMax} bytes, got ${JSON.stringify(isBinary ? field.toString('hex') : written)}.`,
  );
}

/** Base 256, big-endian; negative where the second bit is set, too. */
function binaryIn(field: Buffer): number {
  if ((field[0]! & 0x40) !== 0) return -1;
  return field.subarray(1).reduce((sum, byte) => sum * 256 + byte, field[0]! & 0x3f);
}

/** 0 where there are other characters than digits. */
function octalIn(header: Buffer, at: number, length: number): number {
  const written = text(header.subarray(at, at + length)).trim();
  return /^[0-7]+$/.test(written) ? Number.parseInt(written, 8) : 0;
}

/** Records `LENGTH KEY=VALUE\n`; a length counts its own digits, too. */
function paxFields(records: Buffer): Extra {
  const found: { name?: string; target?: string; size?: number } = {};
  for (let at = 0; at < records.length && records[at] !== 0;) {
    const space = records.indexOf(0x20, at);
    const length = Number(records.subarray(at, Math.max(space, at)).toString('latin1'));
    const record = records.subarray(space + 1, at + length - 1).toString('utf8');
    if (space < 0 || !Number.isInteger(length) || length < 5 || at + length > records.length)
      throw new TarTrouble('failed', 'expected pax records in the archive, got other bytes.');
    const [key, value] = [record.slice(0, record.indexOf('=')), record.slice(record.indexOf('=') + 1)];
    if (key === 'path') found.name = value;
    if (key === 'linkpath') found.target = value;
    if (key === 'size') found.size = /^\d+$/.test(value) ? Number(value) : -1;
    at += length;
  }
  return found;
}

function nameIn(header: Buffer): string {
  return [text(header.subarray(345, 500)), text(header.subarray(0, 100))].filter((part) => part !== '').join('/');
}

function withoutSlashes(name: string): string {
  let end = name.length;
  while (end > 1 && name[end - 1] === '/') end -= 1;
  return name.slice(0, end);
}

function isTop(name: string): boolean {
  return !name.startsWith('/') && name.split('/').every((part) => part === '' || part === '.');
}

function cleanName(name: string, bounds: TarBounds): string {
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  // A reader on another system might take a backslash for a slash.
  const leadsOut = name.startsWith('/') || /[\\\0]/.test(name) || parts.includes('..');
  if (leadsOut) throw refused(bounds, name, 'a path that leads out of the archive');
  const isNone = parts.length === 0 || name.endsWith('/');
  const isLong = parts.length > depthMax || parts.some((part) => Buffer.byteLength(part) > nameBytesMax);
  if (isNone || isLong) throw refused(bounds, name, 'no name of a file');
  return parts.join('/');
}

function text(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return Buffer.from(end < 0 ? bytes : bytes.subarray(0, end)).toString('utf8');
}

function refused({ what, takes }: TarBounds, name: string, is: string): TarTrouble {
  const rule = takes === 'files' ? 'plain files only' : 'only files, folders and links of its own';
  return new TarTrouble('refused', `"${name.slice(0, 100)}" is ${is}; ${what} has ${rule}.`);
}
