import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { inTemporaryFolder } from '../../host/temporary-folder.ts';
import { checkStore, requireOwnFolder } from '../../store/index.ts';
import type { Store } from '../../store/types.ts';
import { sha256 } from '../../store/file-store.ts';
import { requireFreeName } from '../free-name.ts';
import { layout } from '../layout.ts';
import { type RunPlace, storeOf } from '../run-access.ts';
import { isSeal } from './archived-keys.ts';
import { type ArchivedObject, objectsOf, type ReadArchive, readArchive, refused } from './read-archive.ts';
import { refuseUnfinishedImport } from './unfinished-import.ts';
import { lackOfSeal } from './whole-seals.ts';

export interface ImportedRun {
  readonly run: RunPlace;
  /** Its name where it was exported. */
  readonly from: string;
  readonly objects: number;
  readonly bytes: number;
}

/** Objects up to this size are put from memory. */
const inMemoryBytesMax = 8 * 1024 * 1024;

/**
 * Puts an archive's run into a store, under its own name or another. All of the archive is read and compared before the
 * first object is written, and `run.json`, which makes it a run, is written last. Throws `ConfigInvalid` for an archive
 * that is not what it should be, for one with a sealed checkpoint that lacks something, and where the name is taken. The
 * same import finishes one that was interrupted.
 */
export async function importRun(
  file: string,
  { store: uri, name }: { readonly store: string; readonly name: string | undefined },
): Promise<ImportedRun> {
  const archive = await readArchive(file);
  const run = { name: name ?? archive.run, store: uri };
  await checkStore(uri);
  const store = storeOf(run);
  const isFinished = await takePlace(run, archive);
  if (!isFinished) {
    try {
      await putRun(file, run, archive);
    } catch (error) {
      // What was wrong with the archive stays wrong. After other failures the same import goes on.
      if (error instanceof RatchetError && error.code === 'ConfigInvalid') await store.removeAll('');
      throw error;
    }
  }
  await store.removeAll(layout.unfinishedImport());
  const bytes = [...archive.sizes.values()].reduce((sum, each) => sum + each, 0);
  return { run, from: archive.run, objects: archive.sizes.size, bytes };
}

/** Whether the run is there already, from an import of this archive that was interrupted at its very end. */
async function takePlace(run: RunPlace, { sha256 }: ReadArchive): Promise<boolean> {
  const store = storeOf(run);
  const begun = await store.read(layout.unfinishedImport());
  if (begun === null) {
    requireFreeName(run.name);
    if ((await store.list('')).length > 0)
      throw new RatchetError(
        'ConfigInvalid',
        `${store.uri} holds something: expected no run of this name. Nothing was imported. Give it another name: --name NAME.`,
      );
    await requireOwnFolder({ name: run.name, store: run.store });
  }
  const { bytes } = await store.putIfAbsent(layout.unfinishedImport(), Buffer.from(`${sha256}\n`));
  if (Buffer.from(bytes).toString('utf8') !== `${sha256}\n`) await refuseUnfinishedImport(run);
  return (await store.read(layout.run())) !== null;
}

async function putRun(file: string, run: RunPlace, { digests }: ReadArchive): Promise<void> {
  const store = storeOf(run);
  let record: Uint8Array | null = null;
  for await (const object of objectsOf(file)) {
    const put = object.key === layout.run() ? await bytesOf(object) : await putObject(store, object);
    if (put instanceof Uint8Array) record = put;
    const digest = put instanceof Uint8Array ? sha256(put) : put;
    if (digest !== digests.get(object.key)) throw changed(file);
  }
  if (record === null) throw changed(file);
  for (const seal of [...digests.keys()].filter(isSeal)) {
    const lacks = await lackOfSeal(run, seal, digests);
    if (lacks !== null) throw refused(file, `the whole checkpoint ${path.posix.dirname(seal)}`, `one where ${lacks}`);
  }
  await store.put(layout.run(), record);
}

function changed(file: string): RatchetError {
  return refused(file, 'the archive that was compared', 'another one: it was written meanwhile');
}

/** Returns the sha256 of what was stored. */
async function putObject(store: Store, object: ArchivedObject): Promise<string> {
  const { key, size } = object;
  if (size <= inMemoryBytesMax) return (await store.put(key, await bytesOf(object))).sha256;
  const name = 'object';
  if (!store.staging)
    return inTemporaryFolder('import', async (folder) => {
      const made = path.join(folder, name);
      await writeTo(made, object);
      return (await store.putFile(key, made)).sha256;
    });
  const prefix = `${layout.allPending('main')}import/`;
  const staged = await store.staging.folder(prefix);
  try {
    const digest = await writeTo(path.join(staged.at, name), object);
    await store.staging.seal(prefix);
    if (await store.staging.settle(prefix + name, key)) return digest;
    return (await store.putFile(key, path.join(staged.path, name))).sha256;
  } finally {
    await staged.close();
    await store.removeAll(prefix);
  }
}

async function writeTo(file: string, { content }: ArchivedObject): Promise<string> {
  const hash = createHash('sha256');
  const made = await open(file, 'w');
  try {
    for await (const piece of content) {
      hash.update(piece);
      await made.writeFile(piece);
    }
  } finally {
    await made.close();
  }
  return hash.digest('hex');
}

async function bytesOf({ content }: ArchivedObject): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for await (const piece of content) pieces.push(piece);
  return Buffer.concat(pieces);
}
