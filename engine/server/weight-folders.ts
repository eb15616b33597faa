import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { readAdapter } from '../model/adapter-folder.ts';
import type { LoraConfig } from '../model/adapter-layout.ts';
import { type AdapterParameters, mergeAdapter, mergeInPlace, mergeWhenRead, policyDigest } from '../model/lora.ts';
import { loadModelConfig, loadPlainParameters } from '../model/model-folder.ts';
import type { Parameters } from '../model/parameters.ts';
import type { WeightSource } from './resident-weights.ts';

/** Weights of a version: in its folder, and at times in memory. */
export interface StoredWeights {
  readonly digest: string;
  /** What comes into memory: the version's weights, or the base that versions with adapters share. */
  readonly source: WeightSource;
  /** The version's weights, given what the source read. */
  readonly of: (read: Parameters) => Parameters;
}

/** The folder has other weights than it had, or none: they cannot be read again. */
export class WeightsGone extends Error {}

/** What weights in memory take, and how what was made from them is closed. */
type Handling = Pick<WeightSource, 'bytes' | 'close'>;
type UseNow = <Result>(source: WeightSource, work: (parameters: Parameters) => Promise<Result>) => Promise<Result>;

interface SharedBase {
  readonly digest: string;
  readonly source: WeightSource;
  /** Those that have been sampled since the base was read. */
  readonly versions: Map<AdapterParameters, Parameters>;
}

interface AdapterPlace {
  readonly folder: string;
  readonly base: string;
  readonly lora: LoraConfig;
  /** Who samples it beside its base, which versions of one sampler share; null = it is merged into its base. */
  readonly besideAs: string | null;
}

/** Reads weights of versions from their folders, as often as they are wanted in memory. */
export class WeightFolders {
  readonly #keepsBase: () => boolean;
  /** By folder, as long as its files are the same. */
  readonly #digests = new Map<string, { readonly stamp: string; readonly digest: string }>();
  /** The base of adapters, where it stays in memory: every step of a LoRA run sends another adapter of the same base. */
  #base: { readonly folder: string; readonly stamp: string; readonly parameters: Parameters } | null = null;
  /** Bases that versions are sampled beside, by folder and sampler. */
  readonly #shared = new Map<string, SharedBase>();

  constructor({ keepsBase }: { readonly keepsBase: () => boolean }) {
    this.#keepsBase = keepsBase;
  }

  get baseBytes(): number {
    return this.#base?.parameters.flat.byteLength ?? 0;
  }

  /** Weights of all that a version is; they are read once at once, as their digest is not known before. */
  async plain(folder: string, handling: Handling, useNow: UseNow): Promise<StoredWeights> {
    let digest: string | null = null;
    const read = async (spare: Float32Array | null): Promise<Parameters> => {
      if (digest === null) {
        const stamp = await weightsStamp(folder);
        const parameters = await loadPlainParameters(folder, spare);
        digest = this.#remember(folder, stamp, parameters.digest());
        return parameters;
      }
      const parameters = await loadPlainParameters(folder, spare).catch((cause: unknown) => {
        throw new WeightsGone(`its weights cannot be read again (${String(cause)})`, { cause });
      });
      if ((await this.#digestOf(folder, parameters)) === digest) return parameters;
      throw new WeightsGone(`${folder} has other weights than it had`);
    };
    const source = { ...handling, read };
    await useNow(source, () => Promise.resolve());
    return { digest: digest!, source, of: (parameters) => parameters };
  }

  /** An adapter is read at once, as its digest is not known before, and again with its base. Beside a base it stays, since that is shared. */
  async adapted(place: AdapterPlace, handling: Handling, useNow: UseNow): Promise<StoredWeights> {
    const { folder, base, lora, besideAs } = place;
    const config = await loadModelConfig(base);
    const digest = await this.#baseDigest(base, handling, useNow);
    const readAgain = (): Promise<AdapterParameters> => readAdapter(folder, lora, { config, digest });
    if (besideAs !== null) {
      const adapter = await readAgain();
      const identity = policyDigest(digest, adapter);
      const { source, versions } = await this.#sharedBase(base, { digest, besideAs, handling });
      const of = (read: Parameters): Parameters => {
        const version = versions.get(adapter) ?? mergeWhenRead(read, adapter, digest);
        versions.set(adapter, version);
        return version;
      };
      return { digest: identity, source, of };
    }
    const identity = policyDigest(digest, await readAgain());
    const read = async (spare: Float32Array | null): Promise<Parameters> => {
      const adapter = await readAgain().catch((cause: unknown) => {
        throw new WeightsGone(`its adapter cannot be read again (${String(cause)})`, { cause });
      });
      if (policyDigest(digest, adapter) !== identity)
        throw new WeightsGone(`${folder} has another adapter than it had`);
      const kept = await this.#keptBase(base, digest);
      if (kept) return mergeAdapter(kept, adapter, digest, spare);
      return mergeInPlace(await this.#readBase(base, digest, spare), adapter, digest);
    };
    return { digest: identity, source: { ...handling, read }, of: (parameters) => parameters };
  }

  /** null where there is no room for it beside a version, or where nobody could tell whether it is still the same. */
  async #keptBase(folder: string, digest: string): Promise<Parameters | null> {
    const stamp = await weightsStamp(folder);
    const isKept = this.#keepsBase() && stamp !== null;
    if (isKept && this.#base?.folder === folder && this.#base.stamp === stamp) return this.#base.parameters;
    this.#base = null;
    if (!isKept) return null;
    const parameters = await this.#readBase(folder, digest, null);
    this.#base = { folder, stamp, parameters };
    return parameters;
  }

  async #sharedBase(
    folder: string,
    { digest, besideAs, handling }: { digest: string; besideAs: string; handling: Handling },
  ): Promise<SharedBase> {
    const key = `${folder} ${besideAs}`;
    const known = this.#shared.get(key);
    if (known?.digest === digest) return known;
    const versions: SharedBase['versions'] = new Map();
    const close = async (read: Parameters): Promise<void> => {
      for (const version of versions.values()) await handling.close(version);
      versions.clear();
      await handling.close(read);
    };
    const read = (spare: Float32Array | null): Promise<Parameters> => this.#readBase(folder, digest, spare);
    const shared = { digest, source: { bytes: handling.bytes, read, close }, versions };
    this.#shared.set(key, shared);
    return shared;
  }

  async #readBase(folder: string, digest: string, spare: Float32Array | null): Promise<Parameters> {
    const parameters = await loadPlainParameters(folder, spare).catch((cause: unknown) => {
      throw new WeightsGone(`its base cannot be read again (${String(cause)})`, { cause });
    });
    if ((await this.#digestOf(folder, parameters)) === digest) return parameters;
    throw new WeightsGone(`its base in ${folder} has other weights than it had`);
  }

  async #baseDigest(folder: string, handling: Handling, useNow: UseNow): Promise<string> {
    const known = this.#digests.get(folder);
    if (known && known.stamp === (await weightsStamp(folder))) return known.digest;
    const read = (spare: Float32Array | null): Promise<Parameters> => loadPlainParameters(folder, spare);
    return useNow({ ...handling, read }, (parameters) => this.#digestOf(folder, parameters));
  }

  /** Of weights that were just read from there; not computed again while the files are the same. */
  async #digestOf(folder: string, parameters: Parameters): Promise<string> {
    const stamp = await weightsStamp(folder);
    const known = this.#digests.get(folder);
    if (known && stamp !== null && known.stamp === stamp) return known.digest;
    return this.#remember(folder, stamp, parameters.digest());
  }

  #remember(folder: string, stamp: string | null, digest: string): string {
    if (stamp !== null) this.#digests.set(folder, { stamp, digest });
    return digest;
  }
}

/** Tells when a folder's weights have changed; null where that cannot be told. */
async function weightsStamp(folder: string): Promise<string | null> {
  for (const name of ['model.safetensors', 'model.safetensors.index.json']) {
    const stats = await stat(join(folder, name)).catch(() => null); // the other may be there
    if (stats) return `${name} ${stats.mtimeMs} ${stats.size} ${stats.ino}`;
  }
  return null;
}
