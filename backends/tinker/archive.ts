import { gunzipSync } from 'node:zlib';
import { TinkerTrouble } from './trouble.ts';

/**
 * Limit of an adapter's unpacked archive: adapters of the largest models take hundreds of MB. Node's buffers end here
 * as well.
 */
const unpackedBytesMax = 4 * 2 ** 30;
/**
 * Weights hardly compress: half of a new adapter is zeros, a factor of two. An archive that unpacks to many times its
 * size is no adapter, and may be meant to fill the memory.
 */
const unpackedTimesMax = 16;
const unpackedBytesFree = 16 * 2 ** 20;
const blockBytes = 512;
/** An adapter has a handful of files; even empty ones cost memory here. */
const filesMax = 1_000;
/** Limit of a name that does not fit into its header. */
const nameBytesMax = 16 * 1024;

/**
 * The plain files of a tar.gz, by name. Folders are skipped; an absolute name, one that leads out of its folder, a link
 * or a device is refused: an archive is untrusted input.
 */
export function readTarGz(bytes: Uint8Array, where: string): Map<string, Uint8Array> {
  let tar: Buffer;
  try {
    tar = gunzipSync(bytes, { maxOutputLength: maxOutputLength(bytes) });
  } catch (cause) {
    const isTooLarge = (cause as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE';
    const received = isTooLarge
      ? `${bytes.length} bytes that unpack to more than ${maxOutputLength(bytes)}`
      : `${bytes.length} other bytes`;
    throw new TinkerTrouble('failed', `${where}: expected a tar.gz of an adapter, got ${received}.`, { cause });
  }
  const files = new Map<string, Uint8Array>();
  let longName: string | null = null;
  for (let at = 0; at + blockBytes <= tar.length;) {
    const header = tar.subarray(at, at + blockBytes);
    if (header.every((byte) => byte === 0)) break;
    const size = sizeIn(header, where);
    const content = tar.subarray(at + blockBytes, at + blockBytes + size);
    if (content.length < size) throw new TinkerTrouble('failed', `${where}: the archive is cut off.`);
    at += blockBytes + Math.ceil(size / blockBytes) * blockBytes;
    const type = String.fromCharCode(header[156] ?? 0);
    if (type === 'L') longName = text(content.subarray(0, nameBytesMax));
    else if (type === 'x') longName = paxPath(text(content.subarray(0, nameBytesMax))) ?? longName;
    else if (type !== 'g') {
      const name =
        longName ??
        [text(header.subarray(345, 500)), text(header.subarray(0, 100))].filter((part) => part !== '').join('/');
      longName = null;
      if (type === '5') continue;
      if (type !== '0' && type !== '\0') throw refused(where, name, 'no plain file');
      const clean = name.replace(/^(?:\.\/)+/, '');
      const leadsOut = clean.startsWith('/') || clean.includes('\\') || clean.split('/').includes('..');
      if (leadsOut) throw refused(where, name, 'a path that leads out of the archive');
      files.set(clean, content);
      if (files.size > filesMax) throw refused(where, name, `one file too many (${filesMax} are read)`);
    }
  }
  return files;
}

function maxOutputLength(bytes: Uint8Array): number {
  return Math.min(unpackedBytesMax, unpackedBytesFree + unpackedTimesMax * bytes.length);
}

function sizeIn(header: Buffer, where: string): number {
  const field = header.subarray(124, 136);
  // Sizes beyond 8 GiB are written in binary, which is beyond our limit.
  const written = text(field).trim();
  const size = /^[0-7]*$/.test(written) ? Number.parseInt(written || '0', 8) : Number.NaN;
  if (size <= unpackedBytesMax) return size;
  throw new TinkerTrouble(
    'failed',
    `${where}: expected the size of a file in the archive in octal digits, at most ${unpackedBytesMax} bytes, got ${JSON.stringify(written)}.`,
  );
}

/** The path in lines `LENGTH path=NAME`. */
function paxPath(records: string): string | undefined {
  return /^\d+ path=(.*)$/m.exec(records)?.[1];
}

function text(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return Buffer.from(end < 0 ? bytes : bytes.subarray(0, end)).toString('utf8');
}

function refused(where: string, name: string, what: string): TinkerTrouble {
  return new TinkerTrouble(
    'refused',
    `${where}: "${name.slice(0, 100)}" is ${what}; an adapter's archive has plain files only.`,
  );
}
