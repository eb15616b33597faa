import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { ByteReader, CutOff } from './byte-reader.ts';
import { TinkerTrouble } from './trouble.ts';

/** Limit of an unpacked archive: merged weights of the largest models take 2 TB in 16 bits. */
const unpackedBytesMax = 4 * 2 ** 40;
/**
 * Weights hardly compress: half of a new adapter is zeros, a factor of two. An archive that unpacks to many times its
 * size holds no weights, and may be meant to fill the disk.
 */
const unpackedTimesMax = 16;
const unpackedBytesFree = 16 * 2 ** 20;
const blockBytes = 512;
/** Weights have a handful of files, in hundreds of parts at most. */
const filesMax = 500;
/** Limit of a header that holds a name or a size which does not fit into its field. */
const extraBytesMax = 64 * 1024;
/** The longest name that file systems take. */
const nameCharsMax = 255;

/**
 * Writes the plain files of a tar or tar.gz into a folder, piece by piece, and returns their names. Names and sizes may
 * be in GNU's or pax's form, whose files have no limit of 8 GiB. Folders are skipped. Refused are an absolute name, one
 * that leads out of its folder, a name that comes twice, a link and a device: an archive is untrusted input.
 */
export async function unpackArchive(
  archive: AsyncIterable<Uint8Array>,
  folder: string,
  where: string,
): Promise<string[]> {
  const counted = new Counted(archive);
  const packed = new ByteReader(counted);
  // The end of a stream that is left early would be told in place of what was wrong.
  let wrong: { readonly error: unknown } | null = null;
  try {
    const isZipped = (await packed.peek(2)).equals(Buffer.from([0x1f, 0x8b]));
    if (!isZipped) return await unpackTar(packed, folder, where);
    let names: string[] = [];
    await pipeline(packed.rest(), createGunzip(), async (unzipped: AsyncIterable<Uint8Array>) => {
      const tar = new ByteReader(bounded(unzipped, counted, where));
      try {
        names = await unpackTar(tar, folder, where);
        for await (const _ of tar.rest()); // what is left ends the pipeline, within the same bounds
      } catch (error) {
        wrong = { error };
        throw error;
      } finally {
        await tar.close();
      }
    });
    return names;
  } catch (caught) {
    const { error } = wrong ?? { error: caught };
    if (error instanceof CutOff) throw new TinkerTrouble('failed', `${where}: the archive is cut off.`);
    if (!isZlibError(error)) throw error;
    throw new TinkerTrouble('failed', `${where}: expected a tar or tar.gz of weights, got ${counted.bytes} other bytes.`, { cause: error }); // prettier-ignore
  } finally {
    await packed.close();
  }
}

async function unpackTar(tar: ByteReader, folder: string, where: string): Promise<string[]> {
  const [names, folders] = [new Set<string>(), new Set<string>()];
  let extra: { name?: string | undefined; size?: number | undefined } = {};
  let total = 0;
  while ((await tar.peek(blockBytes)).some((byte) => byte !== 0)) {
    const header = await tar.take(blockBytes);
    requireHeader(header, where);
    const type = String.fromCharCode(header[156] ?? 0);
    const size = sizeOf(header, type === 'x' || type === 'L' || type === 'g' ? undefined : extra.size, where);
    total += size;
    if (total > unpackedBytesMax)
      throw new TinkerTrouble('failed', `${where}: expected at most ${unpackedBytesMax} bytes of files, got more.`);
    const padding = (blockBytes - (size % blockBytes)) % blockBytes;
    if (type === 'L' || type === 'x' || type === 'g') {
      if (size > extraBytesMax) throw refused(where, `header ${type}`, `larger than ${extraBytesMax} bytes`);
      const content = await tar.take(size);
      if (type === 'L') extra = { ...extra, name: text(content) };
      else if (type === 'x') extra = { ...extra, ...paxFields(content, where) };
    } else {
      const name = extra.name ?? nameIn(header);
      extra = {};
      if (type === '5') await tar.skip(size);
      else {
        if (type !== '0' && type !== '\0') throw refused(where, name, 'no plain file');
        const clean = cleanName(name, where);
        if (names.has(clean) || folders.has(clean)) throw refused(where, name, 'a second file of its name');
        names.add(clean);
        for (let at = path.posix.dirname(clean); at !== '.'; at = path.posix.dirname(at)) {
          if (names.has(at)) throw refused(where, name, 'below a file');
          folders.add(at);
        }
        if (names.size > filesMax) throw refused(where, name, `one file too many (${filesMax} are read)`);
        const file = path.join(folder, clean);
        await mkdir(path.dirname(file), { recursive: true });
        await pipeline(tar.stream(size), createWriteStream(file, { flags: 'wx' }));
      }
    }
    await tar.skip(padding);
  }
  // A block of zeros is its end: without it, files may be missing.
  if ((await tar.peek(blockBytes)).length < blockBytes) throw new CutOff();
  return [...names];
}

/** Counts the bytes that came: what they unpack to is measured by it. */
class Counted implements AsyncIterable<Uint8Array> {
  bytes = 0;
  readonly #source: AsyncIterable<Uint8Array>;

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for await (const chunk of this.#source) {
      this.bytes += chunk.length;
      yield chunk;
    }
  }
}

async function* bounded(
  unzipped: AsyncIterable<Uint8Array>,
  packed: Counted,
  where: string,
): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  for await (const chunk of unzipped) {
    bytes += chunk.length;
    const max = unpackedBytesFree + unpackedTimesMax * packed.bytes;
    if (bytes > max)
      throw new TinkerTrouble(
        'failed',
        `${where}: expected a tar.gz of weights, got ${packed.bytes} bytes that unpack to more than ${max}.`,
      );
    yield chunk;
  }
}

/** The sum over a header's bytes, its own field read as spaces. Older writers added signed bytes. */
function requireHeader(header: Buffer, where: string): void {
  const said = Number.parseInt(text(header.subarray(148, 156)).trim(), 8);
  const summed = header.map((byte, i) => (i >= 148 && i < 156 ? 0x20 : byte));
  const unsigned = summed.reduce((sum, byte) => sum + byte, 0);
  const signed = summed.reduce((sum, byte) => sum + (byte > 127 ? byte - 256 : byte), 0);
  if (said === unsigned || said === signed) return;
  throw new TinkerTrouble('failed', `${where}: expected a tar or tar.gz of weights, got other bytes.`);
}

/** Octal digits; or, where the first bit is set, a binary number (GNU, beyond 8 GiB); or what pax said before. */
function sizeOf(header: Buffer, paxSize: number | undefined, where: string): number {
  const field = header.subarray(124, 136);
  const written = text(field).trim();
  const isBinary = (field[0]! & 0x80) !== 0;
  const size =
    paxSize ??
    (isBinary ? binaryIn(field) : /^[0-7]*$/.test(written) ? Number.parseInt(written || '0', 8) : Number.NaN);
  if (size >= 0 && size <= unpackedBytesMax) return size;
  throw new TinkerTrouble(
    'failed',
    `${where}: expected the size of a file in the archive, from 0 to ${unpackedBytesMax} bytes, got ${JSON.stringify(isBinary ? field.toString('hex') : written)}.`,
  );
}

/** Base 256, big-endian; negative where the second bit is set, too. */
function binaryIn(field: Buffer): number {
  if ((field[0]! & 0x40) !== 0) return -1;
  return field.subarray(1).reduce((sum, byte) => sum * 256 + byte, field[0]! & 0x3f);
}

/** Records `LENGTH KEY=VALUE\n`; a length counts its own digits, too. */
function paxFields(records: Buffer, where: string): { name?: string; size?: number } {
  const found: { name?: string; size?: number } = {};
  for (let at = 0; at < records.length && records[at] !== 0;) {
    const space = records.indexOf(0x20, at);
    const length = Number(records.subarray(at, Math.max(space, at)).toString('latin1'));
    const record = records.subarray(space + 1, at + length - 1).toString('utf8');
    if (space < 0 || !Number.isInteger(length) || length < 5 || at + length > records.length)
      throw new TinkerTrouble('failed', `${where}: expected pax records in the archive, got other bytes.`);
    const [key, value] = [record.slice(0, record.indexOf('=')), record.slice(record.indexOf('=') + 1)];
    if (key === 'path') found.name = value;
    if (key === 'size') found.size = /^\d+$/.test(value) ? Number(value) : -1;
    at += length;
  }
  return found;
}

function nameIn(header: Buffer): string {
  return [text(header.subarray(345, 500)), text(header.subarray(0, 100))].filter((part) => part !== '').join('/');
}

function cleanName(name: string, where: string): string {
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  const leadsOut = name.startsWith('/') || /[\\\0]/.test(name) || parts.includes('..');
  if (leadsOut) throw refused(where, name, 'a path that leads out of the archive');
  const isNone = parts.length === 0 || name.endsWith('/') || parts.some((part) => part.length > nameCharsMax);
  if (isNone) throw refused(where, name, 'no name of a file');
  return parts.join('/');
}

function text(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return Buffer.from(end < 0 ? bytes : bytes.subarray(0, end)).toString('utf8');
}

function refused(where: string, name: string, what: string): TinkerTrouble {
  return new TinkerTrouble(
    'refused',
    `${where}: "${name.slice(0, 100)}" is ${what}; an archive of weights has plain files only.`,
  );
}

function isZlibError(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code?.startsWith('Z_') === true;
}
