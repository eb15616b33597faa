import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { ByteReader, CutOff } from '../../host/archives/byte-reader.ts';
import { readTar, type TarBounds, TarTrouble } from '../../host/archives/read-tar.ts';
import { TinkerTrouble } from './trouble.ts';

/** Limit of an unpacked archive: merged weights of the largest models take 2 TB in 16 bits. */
const unpackedBytesMax = 4 * 2 ** 40;
/**
 * Weights hardly compress: half of a new adapter is zeros, a factor of two. An archive that unpacks to many times its
 * size holds no weights, and may be meant to fill the disk.
 */
const unpackedTimesMax = 16;
const unpackedBytesFree = 16 * 2 ** 20;
const bounds: TarBounds = {
  what: 'a tar or tar.gz of weights',
  bytesMax: unpackedBytesMax,
  /** Weights have a handful of files, in hundreds of parts at most. */
  entriesMax: 500,
  takes: 'files',
};

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
    if (!isZipped) return await unpackTar(packed, folder);
    let names: string[] = [];
    await pipeline(packed.rest(), createGunzip(), async (unzipped: AsyncIterable<Uint8Array>) => {
      const tar = new ByteReader(withinBounds(unzipped, counted, where));
      try {
        names = await unpackTar(tar, folder);
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
    if (error instanceof TarTrouble)
      throw new TinkerTrouble(error.kind, `${where}: ${error.message}`, { cause: error });
    if (!isZlibError(error)) throw error;
    throw new TinkerTrouble('failed', `${where}: expected a tar or tar.gz of weights, got ${counted.bytes} other bytes.`, { cause: error }); // prettier-ignore
  } finally {
    await packed.close();
  }
}

async function unpackTar(tar: ByteReader, folder: string): Promise<string[]> {
  const names: string[] = [];
  for await (const entry of readTar(tar, bounds)) {
    if (entry.is !== 'file') continue;
    names.push(entry.name);
    const file = path.join(folder, entry.name);
    await mkdir(path.dirname(file), { recursive: true });
    await pipeline(entry.content, createWriteStream(file, { flags: 'wx' }));
  }
  return names;
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

async function* withinBounds(
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

function isZlibError(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code?.startsWith('Z_') === true;
}
