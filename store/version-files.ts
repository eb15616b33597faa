import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import type { ObjectRef, PolicyVersion } from '../core/rl/run-state.ts';
import { writeAtOnce } from '../host/write-at-once.ts';
import { NotAFile, readRegular, readRegularText } from '../host/regular-file.ts';
import { isErrno, requireSha256, sha256, sha256OfFile } from './file-store.ts';
import { damaged } from './objects.ts';
import { putFolder } from './put-folder.ts';
import type { Store } from './types.ts';
import { AdapterBase } from './weights-folder.ts';

/**
 * File that lists everything of a version besides its weights. Tokenizer, configs and templates decide the output of
 * the same weights, so each version lists the sha256 of every file in its folder, for an adapter also those of its
 * base, and is identified by that list's sha256. `sha256sum -c SHA256SUMS` in the folder checks it.
 */
export const sumsName = 'SHA256SUMS';

export interface VersionFiles {
  /** Its only safetensors file, or the index of several; see {@link weightsNameIn}. */
  readonly file: ObjectRef;
  readonly sums: ObjectRef;
  /** In the order in which they are stored: a folder that has its weights is whole. */
  readonly names: readonly string[];
}

/** Writes the list of a folder's files, which will be stored below `prefix`, into a file beside them. */
export async function sumFolder(store: Store, folder: string, prefix: string): Promise<VersionFiles> {
  const names = (await readdir(folder)).filter((name) => name !== sumsName).sort();
  const name = weightsNameIn(names, folder);
  const found = await Promise.all(
    names.map(async (each) => ({ name: each, sha256: (await sha256OfFile(path.join(folder, each)))! })),
  );
  const config = names.includes(adapterConfig)
    ? await readRegular(path.join(folder, adapterConfig), textBytesMax, { within: [folder] })
    : null;
  const bytes = listing([...found, ...(await sumsOfBase(store, config, prefix))]);
  await writeAtOnce(path.join(folder, sumsName), bytes); // does not follow an existing link
  const { size } = await stat(path.join(folder, name));
  return {
    file: { key: prefix + name, sha256: found.find((each) => each.name === name)!.sha256, bytes: size },
    sums: { key: prefix + sumsName, sha256: sha256(bytes), bytes: bytes.byteLength },
    names: [...names.filter((each) => each !== name), sumsName, name],
  };
}

/** The file that is stored last, and whose presence says that all weights are there: the only safetensors file, or the index of several. */
export function weightsNameIn(names: readonly string[], folder: string): string {
  const files = names.filter((name) => name.endsWith('.safetensors'));
  const named = files.length === 1 ? files : names.filter((name) => name.endsWith('.safetensors.index.json'));
  if (files.length > 0 && named.length === 1) return named[0]!;
  throw new Error(
    `${folder} holds ${files.length} weights files${files.length > 1 ? ` and ${named.length} indices` : ''}, expected one, or several with an index.`,
  );
}

/** Makes the files of a version, and puts them into the store. `made` is the result of making them. */
export async function putMade<T>(
  store: Store,
  place: { readonly prefix: string; readonly pendingAt: string },
  make: (folder: string) => Promise<T>,
): Promise<{ readonly made: T; readonly files: Pick<VersionFiles, 'file' | 'sums'> }> {
  return putFolder(store, place, async (folder) => {
    const made = await make(folder);
    const { names, file, sums } = await sumFolder(store, folder, place.prefix);
    return { result: { made, files: { file, sums } }, names };
  });
}

/** Stores the list of a folder whose files are in the store already. `files`: their references. */
export async function putSums(store: Store, prefix: string, files: readonly ObjectRef[]): Promise<ObjectRef> {
  const found = files.map(({ key, sha256: digest }) => ({ name: key.slice(prefix.length), sha256: digest }));
  const config = found.some(({ name }) => name === adapterConfig) ? await store.read(prefix + adapterConfig) : null;
  return store.put(prefix + sumsName, listing([...found, ...(await sumsOfBase(store, config, prefix))]));
}

/** Files read during one verification: the sha256 of each, by its state on disk. */
export type ReadAnew = Map<string, string>;

export interface VerifyOptions {
  /** Weights whose files are larger together are only checked for existence. */
  readonly weightsBytesMax?: number;
  /**
   * Reads every byte, even of files that this process has compared before and that look unchanged. Files read during
   * one verification are not read again for the next version: adapters share their base.
   */
  readonly anew?: ReadAnew;
  /** The folder is not at its final place: its base is not beside it. */
  readonly isPending?: boolean;
  /** The folder contains other files as well. */
  readonly sharesFolder?: boolean;
}

/**
 * Throws `CheckpointDamaged` unless every file of a version is in the store with its sha256, and no other file that
 * would be read as part of it.
 */
export async function verifyVersion(
  store: Store,
  { weights: prefix, file, sums }: Pick<PolicyVersion, 'weights' | 'file' | 'sums'>,
  { weightsBytesMax = Number.POSITIVE_INFINITY, anew, isPending = false, sharesFolder = false }: VerifyOptions = {},
): Promise<void> {
  const folder = await store.localFolder(prefix);
  await verifyFile(store, folder, sums, anew);
  const text = await textOf(store, folder, sums);
  const listed = listedIn(text, store.uri + sums.key).filter(({ name }) => !isPending || !name.includes('/'));
  const others = sharesFolder ? [] : (await store.list(prefix)).filter((key) => key !== sums.key);
  for (const key of others) {
    if (listed.some(({ name }) => prefix + name === key)) continue;
    throw new RatchetError(
      'CheckpointDamaged',
      `${key} in ${store.uri} is not of this version: ${sums.key} does not list it. Move it elsewhere.`,
    );
  }
  const bases = new Set(listed.map(({ name }) => path.posix.dirname(name)).filter((place) => place !== '.'));
  for (const place of bases) await store.localFolder(path.posix.join(prefix, place, '/'));
  const large = await largeWeights(folder, listed, weightsBytesMax);
  for (const { name, sha256: digest } of listed) {
    if (large.has(name)) continue;
    const bytes = prefix + name === file.key ? file.bytes : 0;
    await verifyFile(store, folder, { key: path.posix.join(prefix, name), sha256: digest, bytes }, anew, name);
  }
  const ours = listed.find(({ name }) => prefix + name === file.key);
  if (ours?.sha256 !== file.sha256) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${sums.key} in ${store.uri} does not list ${file.key} as its commit does.`,
    );
  }
}

/** Size of a version's weights, whose index may name several files; without the ones that are missing. */
export async function weightBytes(
  store: Store,
  { weights, file }: Pick<PolicyVersion, 'weights' | 'file'>,
): Promise<number> {
  if (file.key.endsWith('.safetensors')) return file.bytes;
  const folder = await store.localFolder(weights);
  const names = (await readdir(folder).catch(() => [])).filter((name) => name.endsWith('.safetensors'));
  const sizes = names.map(async (name) => (await stat(path.join(folder, name)).catch(() => null))?.size ?? 0);
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}

/** Whether the whole version is unchanged. */
export async function isVersionSound(
  store: Store,
  version: Pick<PolicyVersion, 'weights' | 'file' | 'sums'>,
  options: VerifyOptions = {},
): Promise<boolean> {
  try {
    await verifyVersion(store, version, options);
    return true;
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'CheckpointDamaged') return false;
    throw error;
  }
}

const adapterConfig = 'adapter_config.json';

export interface Sum {
  /** Path relative to the folder. */
  readonly name: string;
  readonly sha256: string;
}

function listing(sums: readonly Sum[]): Uint8Array {
  return Buffer.from(sums.map(({ name, sha256: digest }) => `${digest}  ${name}\n`).join(''));
}

/** The lines of such a list; `where` is its name in errors. */
export function listedIn(text: string, where: string): Sum[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [, digest, name] = /^([0-9a-f]{64}) {2}(.+)$/.exec(line) ?? [];
      if (digest !== undefined && name !== undefined) return { name, sha256: digest };
      throw new RatchetError(
        'CheckpointDamaged',
        `${where}: expected lines "SHA256  NAME", got ${JSON.stringify(line)}.`,
      );
    });
}

/** Sums of an adapter's base, if that is in the same store. */
async function sumsOfBase(store: Store, config: Uint8Array | null, prefix: string): Promise<Sum[]> {
  if (config === null) return [];
  const { base_model_name_or_path: base } = AdapterBase.parse(JSON.parse(Buffer.from(config).toString('utf8')));
  if (!base.startsWith('.')) return [];
  const key = path.posix.join(prefix, base, sumsName);
  const bytes = await store.read(key);
  if (bytes === null) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${key} is missing from ${store.uri}: it lists the files of the model that the adapters are for. Restore the file.`,
    );
  }
  return listedIn(Buffer.from(bytes).toString('utf8'), store.uri + key)
    .filter(({ name }) => !name.includes('/'))
    .map(({ name, sha256: digest }) => ({ name: path.posix.join(base, name), sha256: digest }));
}

/** Verified files, by their state on disk. Bounded: the folders of a few versions. */
const compared = new Map<string, string>();
const comparedMax = 256;

/** Limit for tokenizers, configs and templates: none comes near it, and Node's strings end here. */
const textBytesMax = 256 * 1024 * 1024;

async function verifyFile(
  store: Store,
  folder: string,
  ref: ObjectRef,
  anew: ReadAnew | undefined,
  name = path.posix.basename(ref.key),
): Promise<void> {
  const file = path.join(folder, name);
  const found = await lookOf(file);
  // A file of another size has another sha256, and may be so large that reading it takes minutes. 0 = only the sha256
  // is known.
  if (found !== null && (ref.bytes === 0 || found.size === BigInt(ref.bytes))) {
    if (ref.bytes === 0 && !name.endsWith('.safetensors') && found.size > textBytesMax)
      throw damaged(store.uri + ref.key, `expected at most ${textBytesMax} bytes, found ${found.size}`);
    if (!anew && compared.get(file) === `${ref.sha256} ${found.look}`) return;
    const look = `${file} ${found.look}`;
    // Non-files and unreadable files are reported below.
    const digest = anew?.get(look) ?? (await sha256OfFile(file).catch(() => null));
    if (digest !== null) anew?.set(look, digest);
    if (digest === ref.sha256) {
      compared.delete(file);
      compared.set(file, `${ref.sha256} ${found.look}`);
      if (compared.size > comparedMax) compared.delete(compared.keys().next().value!);
      return;
    }
    const isTheObject = store.staging !== undefined; // a bucket's copy is first fetched again
    if (digest !== null && isTheObject) requireSha256(ref, store.uri, digest);
  }
  await store.verify(ref); // reports the problem; a damaged copy of a bucket's object is fetched again
}

/** The list itself, which may have been replaced since the check. */
async function textOf(store: Store, folder: string, sums: ObjectRef): Promise<string> {
  try {
    return await readRegularText(path.join(folder, sumsName), textBytesMax, { within: [folder] });
  } catch (error) {
    if (error instanceof NotAFile) throw damaged(store.uri + sums.key, `expected a file, found ${error.found}`, error);
    throw error;
  }
}

/** Null for a missing file, or a broken link. */
async function lookOf(file: string): Promise<{ readonly look: string; readonly size: bigint } | null> {
  try {
    const { ino, size, mtimeNs, ctimeNs } = await stat(file, { bigint: true });
    return { look: `${ino} ${size} ${mtimeNs} ${ctimeNs}`, size };
  } catch (error) {
    if (['ENOENT', 'ENOTDIR', 'ELOOP'].some((code) => isErrno(error, code))) return null;
    throw error;
  }
}

/** Names of the weights that are there, of a version and of its base, where the files of one of these are larger together. */
async function largeWeights(folder: string, listed: readonly Sum[], bytesMax: number): Promise<ReadonlySet<string>> {
  const sizes = new Map<string, number>();
  for (const { name } of bytesMax === Number.POSITIVE_INFINITY ? [] : listed) {
    const found = name.endsWith('.safetensors') ? await stat(path.join(folder, name)).catch(() => null) : null;
    if (found?.isFile()) sizes.set(name, found.size);
  }
  const together = new Map<string, number>();
  for (const [name, size] of sizes) together.set(path.dirname(name), (together.get(path.dirname(name)) ?? 0) + size);
  return new Set([...sizes.keys()].filter((name) => together.get(path.dirname(name))! > bytesMax));
}
