import { readdir, stat } from 'node:fs/promises';
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
  /** Runs `work` with the version's weights, given the source's. */
  readonly use: <Result>(read: Parameters, work: (parameters: Parameters) => Promise<Result>) => Promise<Result>;
  /** Called when the version is dropped. Frees the memory that it shares with no other. */
  readonly forget: () => Promise<void>;
}

/** Used if the source's weights are the version's own: they are freed with the source. */
const asRead: Pick<StoredWeights, 'use' | 'forget'> = {
  use: (read, work) => work(read),
  forget: () => Promise.resolve(),
};

/** The folder has other weights than it had, or none: they cannot be read again. */
export class WeightsGone extends Error {}

/** Size of loaded weights, and how to close everything made from them. */
type Handling = Pick<WeightSource, 'bytes' | 'close'>;
type UseNow = <Result>(source: WeightSource, work: (parameters: Parameters) => Promise<Result>) => Promise<Result>;

interface SharedBase {
  readonly digest: string;
  readonly source: WeightSource;
  /** Versions with adapters in memory, most recently used last. */
  readonly versions: Set<BesideBase>;
}

/** Idle versions of one base whose adapters stay in memory. */
const idleAdaptersMax = 2;

interface AdapterPlace {
  readonly folder: string;
  readonly base: string;
  readonly lora: LoraConfig;
  /**
   * Sampler that applies the adapter beside its base; versions with the same sampler share the base. null = the adapter
   * is merged.
   */
  readonly besideAs: string | null;
}

/** Loads weights of versions from their folders, as often as needed. */
export class WeightFolders {
  readonly #keepsBase: () => boolean;
  /** Digest by folder, valid while the folder's files are unchanged. */
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
    let readAt: string | null = null;
    const read = async (spare: Float32Array | null): Promise<Parameters> => {
      if (digest === null) {
        const stamp = await weightsStamp(folder);
        const parameters = await loadPlainParameters(folder, spare);
        digest = this.#remember(folder, stamp, parameters.digest());
        readAt = stamp;
        return parameters;
      }
      const parameters = await loadPlainParameters(folder, spare).catch((cause: unknown) => {
        throw new WeightsGone(`its weights cannot be read again (${String(cause)})`, { cause });
      });
      if ((await this.#digestOf(folder, parameters)) === digest) return parameters;
      throw new WeightsGone(`${folder} has other weights than it had`);
    };
    const canReadAgain = async (): Promise<boolean> => readAt === (await weightsStamp(folder)) && readAt !== null;
    const source = { ...handling, canReadAgain, read };
    await useNow(source, () => Promise.resolve());
    return { digest: digest!, source, ...asRead };
  }

  /** An adapter is read at once, as its digest is not known before, and again when it is sampled. */
  async adapted(place: AdapterPlace, handling: Handling, useNow: UseNow): Promise<StoredWeights> {
    const { folder, base, lora, besideAs } = place;
    const config = await loadModelConfig(base);
    const digest = await this.#baseDigest(base, handling, useNow);
    const readAdapterHere = (): Promise<AdapterParameters> => readAdapter(folder, lora, { config, digest });
    const readAt = await adapterStamp(folder);
    const isThere = async (): Promise<boolean> => readAt !== null && readAt === (await adapterStamp(folder));
    const identity = policyDigest(digest, await readAdapterHere());
    const readAgain = async (): Promise<AdapterParameters> => {
      const adapter = await readAdapterHere().catch((cause: unknown) => {
        throw new WeightsGone(`its adapter cannot be read again (${String(cause)})`, { cause });
      });
      if (policyDigest(digest, adapter) === identity) return adapter;
      throw new WeightsGone(`${folder} has another adapter than it had`);
    };
    if (besideAs !== null) {
      const shared = this.#sharedBase(base, { digest, besideAs, handling });
      const open = async (read: Parameters): Promise<Parameters> => mergeWhenRead(read, await readAgain(), digest);
      const version = new BesideBase({ others: shared.versions, open, close: handling.close, canReadAgain: isThere });
      return {
        digest: identity,
        source: shared.source,
        use: (read, work) => version.use(read, work),
        forget: () => version.forget(),
      };
    }
    const canReadAgain = async (): Promise<boolean> => (await isThere()) && this.#canReadBase(base, digest);
    const read = async (spare: Float32Array | null): Promise<Parameters> => {
      const adapter = await readAgain();
      const kept = await this.#keptBase(base, digest);
      if (kept) return mergeAdapter(kept, adapter, digest, spare);
      return mergeInPlace(await this.#readBase(base, digest, spare), adapter, digest);
    };
    return { digest: identity, source: { ...handling, canReadAgain, read }, ...asRead };
  }

  async #canReadBase(folder: string, digest: string): Promise<boolean> {
    const known = this.#digests.get(folder);
    return known?.digest === digest && known.stamp === (await weightsStamp(folder));
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

  #sharedBase(
    folder: string,
    { digest, besideAs, handling }: { digest: string; besideAs: string; handling: Handling },
  ): SharedBase {
    const key = `${folder} ${besideAs}`;
    const known = this.#shared.get(key);
    if (known?.digest === digest) return known;
    const versions: SharedBase['versions'] = new Set();
    const close = async (read: Parameters): Promise<void> => {
      for (const version of versions) await version.close();
      await handling.close(read);
    };
    const read = (spare: Float32Array | null): Promise<Parameters> => this.#readBase(folder, digest, spare);
    const canReadAgain = async (): Promise<boolean> => {
      for (const version of versions) if (!(await version.canReadAgain())) return false;
      return this.#canReadBase(folder, digest);
    };
    const shared = { digest, source: { bytes: handling.bytes, canReadAgain, read, close }, versions };
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
    const canReadAgain = (): Promise<boolean> => Promise.resolve(true);
    return useNow({ ...handling, canReadAgain, read }, (parameters) => this.#digestOf(folder, parameters));
  }

  /** Digest of weights just loaded from the folder; cached while its files are unchanged. */
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

interface BesideParts {
  /** Versions of the same base whose adapters are in memory. */
  readonly others: Set<BesideBase>;
  readonly open: (base: Parameters) => Promise<Parameters>;
  readonly close: Handling['close'];
  readonly canReadAgain: () => Promise<boolean>;
}

/** A version that is sampled beside its base. Its adapter is loaded on use, and stays for a while. */
class BesideBase {
  readonly #parts: BesideParts;
  #opened: Promise<Parameters> | null = null;
  #users = 0;
  #isForgotten = false;

  constructor(parts: BesideParts) {
    this.#parts = parts;
  }

  async use<Result>(base: Parameters, work: (parameters: Parameters) => Promise<Result>): Promise<Result> {
    const { others, open } = this.#parts;
    this.#users++;
    others.delete(this);
    others.add(this);
    this.#opened ??= open(base).catch((error: unknown) => {
      this.#opened = null; // the next request tries again
      others.delete(this);
      throw error;
    });
    try {
      return await work(await this.#opened);
    } finally {
      this.#users--;
      await this.#closeIdle();
    }
  }

  canReadAgain(): Promise<boolean> {
    return this.#parts.canReadAgain();
  }

  async forget(): Promise<void> {
    this.#isForgotten = true;
    if (this.#users === 0) await this.close();
  }

  async close(): Promise<void> {
    const opened = this.#opened;
    this.#opened = null;
    this.#parts.others.delete(this);
    if (opened) await this.#parts.close(await opened);
  }

  /** Closes a source that is unused and forgotten. One that cannot be read again stays open until it is forgotten. */
  async #closeIdle(): Promise<void> {
    if (this.#isForgotten && this.#users === 0) await this.close();
    const idle = [...this.#parts.others].filter((other) => other.#users === 0);
    for (const other of idle.slice(0, Math.max(0, idle.length - idleAdaptersMax))) {
      if ((await other.canReadAgain()) && other.#users === 0) await other.close();
    }
  }
}

/** Changes when a folder's adapter changes; null if that cannot be detected. */
function adapterStamp(folder: string): Promise<string | null> {
  return stampOf(folder, 'adapter_model.safetensors');
}

/** Like `adapterStamp`, for weights that are no adapter's: one file, or several with an index. */
async function weightsStamp(folder: string): Promise<string | null> {
  const whole = await stampOf(folder, 'model.safetensors');
  if (whole !== null) return whole;
  const names = (await readdir(folder).catch(() => [])).filter((name) => /\.safetensors(?:\.index\.json)?$/.test(name));
  const stamps = await Promise.all(names.sort().map((name) => stampOf(folder, name)));
  return stamps.length === 0 || stamps.includes(null) ? null : stamps.join('\n');
}

async function stampOf(folder: string, name: string): Promise<string | null> {
  const stats = await stat(join(folder, name)).catch(() => null); // the other may exist
  return stats && `${name} ${stats.mtimeMs} ${stats.size} ${stats.ino}`;
}
