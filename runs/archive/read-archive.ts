import { createHash } from 'node:crypto';
import type { FileHandle } from 'node:fs/promises';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern } from '../../core/names.ts';
import { ByteReader, CutOff } from '../../host/archives/byte-reader.ts';
import { readTar, type TarBounds, TarTrouble } from '../../host/archives/read-tar.ts';
import type { TarEntry } from '../../host/archives/write-tar.ts';
import { openRegular, whyUnreadable } from '../../host/regular-file.ts';
import { sha256 } from '../../store/file-store.ts';
import { layout } from '../layout.ts';
import { archivedAs } from './archived-keys.ts';
import { archiveFormat, archiveSumsName, archiveVersion, headName, objectsPrefix } from './archive-form.ts';

/** A run's archive in a file of somebody's: nothing in it is believed before it was compared. */
export interface ReadArchive {
  /** The name of the run that was exported. */
  readonly run: string;
  /** sha256 of each object, by key; and their sizes. */
  readonly digests: ReadonlyMap<string, string>;
  readonly sizes: ReadonlyMap<string, number>;
  /** Of its list of digests: another archive has another. */
  readonly sha256: string;
}

export type ArchivedObject = Pick<FileEntry, 'size' | 'content'> & { readonly key: string };

type FileEntry = Extract<TarEntry, { is: 'file' }>;

const Head = z.looseObject({
  format: z.literal(archiveFormat),
  version: z.int().positive(),
  run: z.string().regex(runNamePattern),
});

const headBytesMax = 64 * 1024;
/** Node's strings end slightly above: some million objects. */
const sumsBytesMax = 500 * 1024 * 1024;
/** No bound of bytes: an entry that is larger than what is left of the file is cut off. */
const bounds: TarBounds = {
  what: 'an archive of a run',
  takes: 'files',
  bytesMax: Number.MAX_SAFE_INTEGER,
  entriesMax: 10_000_000,
};
const readBytes = 1024 * 1024;

/**
 * Reads all of an archive and writes nothing. Throws `ConfigInvalid` unless every digest is right, and it holds objects
 * of a run and nothing else: no link, no name that leads out of it or comes twice, no object that its list lacks.
 */
export async function readArchive(file: string): Promise<ReadArchive> {
  const [digests, sizes] = [new Map<string, string>(), new Map<string, number>()];
  let head: { readonly run: string; readonly sha256: string } | null = null;
  let sums: Buffer | null = null;
  for await (const entry of entriesOf(file)) {
    if (sums !== null) throw refused(file, `nothing after ${archiveSumsName}`, JSON.stringify(entry.name));
    if (head === null) {
      if (entry.name !== headName) throw refused(file, `${headName} first, as ratchet export writes it`, entry.name);
      const bytes = await wholeOf(entry, headBytesMax, file);
      head = { run: headIn(bytes, file), sha256: sha256(bytes) };
    } else if (entry.name === archiveSumsName) sums = await wholeOf(entry, sumsBytesMax, file);
    else {
      const key = keyOf(entry, file);
      const hash = createHash('sha256');
      for await (const piece of entry.content) hash.update(piece);
      digests.set(key, hash.digest('hex'));
      sizes.set(key, entry.size);
    }
  }
  if (head === null || sums === null) throw refused(file, `${archiveSumsName} last`, 'a part of an archive');
  compare(file, sums, new Map([[headName, head.sha256], ...[...digests].map(([key, digest]) => [objectsPrefix + key, digest] as const)])); // prettier-ignore
  if (!digests.has(layout.run())) throw refused(file, `${layout.run()} of a run`, 'an archive without it');
  return { run: head.run, digests, sizes, sha256: sha256(sums) };
}

/** The objects of an archive that was read before, in its order. The content of one is read before the next. */
export async function* objectsOf(file: string): AsyncGenerator<ArchivedObject> {
  for await (const entry of entriesOf(file)) {
    if (entry.name === headName || entry.name === archiveSumsName) continue;
    yield { key: keyOf(entry, file), size: entry.size, content: entry.content };
  }
}

async function* entriesOf(file: string): AsyncGenerator<FileEntry> {
  const handle = await openRegular(file).catch((error: unknown) => {
    const message = `${file}: expected an archive of ratchet export, but ${whyUnreadable(error)}.`;
    throw new RatchetError('ConfigInvalid', message, { cause: error });
  });
  try {
    const tar = new ByteReader(piecesOf(handle));
    for await (const entry of readTar(tar, bounds))
      if (entry.is === 'file') yield { ...entry, content: contentOf(entry, file) };
    for await (const piece of tar.rest())
      if (piece.some((byte) => byte !== 0)) throw refused(file, 'nothing after the end of the tar', 'more bytes');
  } catch (error) {
    throw refusalOf(error, file);
  } finally {
    await handle.close();
  }
}

/** The reader of an entry's content gets its errors, and not the loop over the entries. */
async function* contentOf({ content }: FileEntry, file: string): AsyncGenerator<Uint8Array> {
  try {
    yield* content;
  } catch (error) {
    throw refusalOf(error, file);
  }
}

function refusalOf(error: unknown, file: string): unknown {
  if (error instanceof CutOff) return refused(file, 'a whole archive', 'one that is cut off', error);
  if (!(error instanceof TarTrouble)) return error;
  return new RatchetError('ConfigInvalid', `${file}: ${error.message} Nothing was imported.`, { cause: error });
}

async function* piecesOf(handle: FileHandle): AsyncGenerator<Uint8Array> {
  for (let at = 0; ;) {
    const piece = new Uint8Array(readBytes);
    const { bytesRead } = await handle.read(piece, 0, readBytes, at);
    if (bytesRead === 0) return;
    at += bytesRead;
    yield piece.subarray(0, bytesRead);
  }
}

function keyOf({ name }: { readonly name: string }, file: string): string {
  const key = name.startsWith(objectsPrefix) ? name.slice(objectsPrefix.length) : '';
  if (archivedAs(key) === 'archived') return key;
  throw refused(file, 'objects that a run stores', JSON.stringify(name.slice(0, 200)));
}

function headIn(bytes: Buffer, file: string): string {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (error) {
    throw refused(file, `JSON in ${headName}`, 'other bytes', error);
  }
  const read = Head.safeParse(value);
  if (!read.success) throw refused(file, `an archive of a run in ${headName}`, 'another', read.error);
  if (read.data.version <= archiveVersion) return read.data.run;
  throw new RatchetError(
    'WrittenByNewer',
    `${file}: expected an archive of version ${archiveVersion}, got version ${read.data.version}. A newer version of Ratchet wrote it: npm install ratchet-rl@latest.`,
  );
}

/** `found`: sha256 by the name of the entry. */
function compare(file: string, sums: Buffer, found: ReadonlyMap<string, string>): void {
  const listed = new Map<string, string>();
  for (const line of sums.toString('utf8').split('\n')) {
    if (line === '') continue;
    const [, digest, name] = /^([0-9a-f]{64}) {2}(.+)$/.exec(line) ?? [];
    if (digest === undefined || name === undefined || listed.has(name))
      throw refused(file, `lines "SHA256  NAME" in ${archiveSumsName}, each name once`, JSON.stringify(line.slice(0, 200))); // prettier-ignore
    listed.set(name, digest);
    const is = found.get(name);
    if (is === undefined) throw refused(file, `${name}, which ${archiveSumsName} lists`, 'an archive without it');
    if (is !== digest) throw refused(file, `${name} with sha256 ${digest.slice(0, 12)}…`, `${is.slice(0, 12)}…`);
  }
  for (const name of found.keys())
    if (!listed.has(name)) throw refused(file, `only what ${archiveSumsName} lists`, JSON.stringify(name));
}

async function wholeOf(entry: FileEntry, bytesMax: number, file: string): Promise<Buffer> {
  if (entry.size > bytesMax) throw refused(file, `${entry.name} of at most ${bytesMax} bytes`, `${entry.size}`);
  const pieces: Uint8Array[] = [];
  for await (const piece of entry.content) pieces.push(piece);
  return Buffer.concat(pieces);
}

export function refused(file: string, expected: string, got: string, cause?: unknown): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${file}: expected ${expected}, got ${got}. Nothing was imported.`,
    cause === undefined ? {} : { cause },
  );
}
