import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { readAdapter } from '../model/adapter-folder.ts';
import type { LoraConfig } from '../model/adapter-layout.ts';
import { type AdapterParameters, mergeAdapter, mergeInPlace, mergeWhenRead, policyDigest } from '../model/lora.ts';
import { loadModelConfig, loadPlainParameters } from '../model/model-folder.ts';
import type { Parameters } from '../model/parameters.ts';
import type { WeightSource } from './resident-weights.ts';

/** Weights of a version, which are stored in a folder and loaded at times. */
export interface StoredWeights {
  readonly digest: string;
  /** The weights that are loaded: the version's own, or the base that several adapters share. */
  readonly source: WeightSource;
  /** Returns the version's weights from the loaded ones. */
  readonly of: (read: Parameters) => Parameters;
}

/** The folder's weights have changed or are gone, so they cannot be loaded again. */
export class WeightsGone extends Error {}

/** Size of loaded weights, and how to close everything made from them. */
type Handling = Pick<WeightSource, 'bytes' | 'close'>;
type UseNow = <Result>(source: WeightSource, work: (parameters: Parameters) => Promise<Result>) => Promise<Result>;

interface SharedBase {
  readonly digest: string;
  readonly source: WeightSource;
  /** Adapters that were sampled since the base was loaded. */
  readonly versions: Map<AdapterParameters, Parameters>;
}

interface AdapterPlace {
  readonly folder: string;
  readonly base: string;
  readonly lora: LoraConfig;
  /** Sampler that applies the adapter beside its base, which versions with the same sampler share; null = the adapter is merged. */
  readonly besideAs: string | null;
}

/** Loads weights of versions from their folders, as often as needed. */
export class WeightFolders {
  readonly #keepsBase: () => boolean;
  /** Digest by folder, valid while the folder's files are the same. */
  readonly #digests = new Map<string, { readonly stamp: string; readonly digest: string }>();
  /** The adapters' base, if it stays loaded: every step of a LoRA run sends another adapter for the same base. */
  #base: { readonly folder: string; readonly stamp: string; readonly parameters: Parameters } | null = null;
  /** Bases with adapters beside them, by folder and sampler. */
  readonly #shared = new Map<string, SharedBase>();

  constructor({ keepsBase }: { readonly keepsBase: () => boolean }) {
    this.#keepsBase = keepsBase;
  }

  get baseBytes(): number {
    return this.#base?.parameters.flat.byteLength ?? 0;
  }

  /** Full weights of a version. They are loaded once at the start, because only that gives their digest. */
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

  /**
   * Adapter of a version, which is loaded once at the start to get its digest. A merged one is loaded again with its base; beside a shared
   * base it stays loaded.
   */
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

  /** Returns null if there is no room for the base beside a version, or if nothing shows that its files are unchanged. */
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

  /** Digest of weights that were just loaded from the folder; cached while its files are the same. */
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

/** A stamp that changes with the folder's weights; null if the files do not allow one. */
async function weightsStamp(folder: string): Promise<string | null> {
  for (const name of ['model.safetensors', 'model.safetensors.index.json']) {
    const stats = await stat(join(folder, name)).catch(() => null); // the other file may exist
    if (stats) return `${name} ${stats.mtimeMs} ${stats.size} ${stats.ino}`;
  }
  return null;
}
