import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { ObjectRef, OptimizerState } from '../../core/rl/run-state.ts';
import { requireSha256, sha256 } from '../../store/file-store.ts';
import type { Store } from '../../store/index.ts';
import { putFolder } from '../../store/put-folder.ts';
import { decodeStored } from '../forms/stored-forms.ts';

/**
 * The state of an optimizer in the store: one object, or a folder of files with a list of them, which its reference names. The list is
 * written last, so a state that has it is whole. Files go from disk to disk, and are never in memory as a whole.
 */

/** The list in a folder (python/ratchet_torch/states.py writes it). */
const listName = 'optimizer.json';
export const optimizerFolder = 'optimizer/';

/** The files of a state; the trainer that wrote it has more there. */
export interface OptimizerFiles {
  readonly files: Readonly<Record<string, { readonly bytes: number; readonly sha256: string }>>;
}

/** The one object of a checkpoint's state that has no folder. */
export const optimizerName = 'optimizer.safetensors';

/** The object or folder that is moved to bring a state to its place. */
export function optimizerPlace(key: string): string {
  return isList(key) ? folderOf(key) : key;
}

/** Has a trainer save its state, and stores it below a checkpoint's prefix; the bytes of one under `name`. */
export async function putOptimizer(
  store: Store,
  { prefix, name, pendingAt }: { readonly prefix: string; readonly name: string; readonly pendingAt: string },
  save: (folder: string) => Promise<OptimizerState>,
): Promise<ObjectRef> {
  const place = { prefix: prefix + optimizerFolder, pendingAt };
  const saved = await putFolder<Uint8Array | ObjectRef>(store, place, async (folder) => {
    const state = await save(folder);
    if (state instanceof Uint8Array) return { result: state, names: [] };
    const { ref, files } = await listedFiles(folder, place.prefix);
    return { result: ref, names: [...files, ref].map(({ key }) => key.slice(place.prefix.length)) };
  });
  return saved instanceof Uint8Array ? store.put(prefix + name, saved) : saved;
}

/** The list of a folder, and the files that it names, as they will be stored below `prefix`. */
export async function listedFiles(
  folder: string,
  prefix: string,
): Promise<{ readonly ref: ObjectRef; readonly files: readonly ObjectRef[] }> {
  const bytes = await readFile(path.join(folder, listName));
  const ref = { key: prefix + listName, sha256: sha256(bytes), bytes: bytes.byteLength };
  return { ref, files: filesIn(bytes, ref.key, prefix) };
}

/** The objects of a state, in the order in which they are stored. Throws `CheckpointDamaged` unless its list is what it was. */
export async function optimizerObjects(store: Store, ref: ObjectRef): Promise<readonly ObjectRef[]> {
  if (!isList(ref.key)) return [ref];
  return [...filesIn(await store.get(ref), store.uri + ref.key, folderOf(ref.key)), ref];
}

/** Throws `CheckpointDamaged` unless every file of a state is in the store with its sha256. */
export async function verifyOptimizer(store: Store, ref: ObjectRef): Promise<void> {
  for (const object of await optimizerObjects(store, ref)) await store.verify(object);
}

export async function isOptimizerSound(store: Store, ref: ObjectRef): Promise<boolean> {
  try {
    await verifyOptimizer(store, ref);
    return true;
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'CheckpointDamaged') return false;
    throw error;
  }
}

/** A state for the trainer. Throws `CheckpointDamaged` unless it is whole. */
export async function openOptimizer(store: Store, ref: ObjectRef): Promise<OptimizerState> {
  if (!isList(ref.key)) return store.get(ref);
  await verifyOptimizer(store, ref);
  return { folder: await store.localFolder(folderOf(ref.key)), isVerified: true };
}

/** Copies a state to another store, below a checkpoint's prefix there. */
export async function copyOptimizer(
  from: Store,
  ref: ObjectRef,
  to: { readonly store: Store; readonly prefix: string },
): Promise<ObjectRef> {
  const here = folderOf(ref.key);
  const key = to.prefix + (isList(ref.key) ? optimizerFolder + listName : optimizerName);
  const local = await from.localFolder(here);
  for (const object of await optimizerObjects(from, ref)) {
    const name = object.key.slice(here.length);
    const target = object === ref ? key : folderOf(key) + name;
    const { sha256: put } = await to.store.putFile(target, path.join(local, name));
    requireSha256(object, from.uri, put);
  }
  return { ...ref, key };
}

function filesIn(bytes: Uint8Array, where: string, prefix: string): ObjectRef[] {
  const { files } = decodeStored<OptimizerFiles>(bytes, where, ({ files: found }) => ({
    'files with their sizes and sha256':
      typeof found === 'object' && found !== null && Object.values(found).every(isFile),
    'names without a path': Object.keys(found ?? {}).every((name) => /^[\w.-]*[\w-]$/.test(name)),
  }));
  return Object.entries(files).map(([name, { bytes: size, sha256: digest }]) => ({
    key: prefix + name,
    sha256: digest,
    bytes: size,
  }));
}

function isFile(value: unknown): boolean {
  const { bytes, sha256: digest } = (value ?? {}) as Record<string, unknown>;
  return Number.isSafeInteger(bytes) && typeof digest === 'string' && /^[0-9a-f]{64}$/.test(digest);
}

function isList(key: string): boolean {
  return key.endsWith(`/${optimizerFolder}${listName}`);
}

function folderOf(key: string): string {
  return key.slice(0, key.lastIndexOf('/') + 1);
}
