import { createHash } from 'node:crypto';
import { readdir, realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative, resolve, sep } from 'node:path';
import { type ModelLoadOptions, loadModelFolder, loadParameters, type ModelFolder } from '../model/model-folder.ts';
import type { Parameters } from '../model/parameters.ts';
import type { Provider, SessionOptions } from '../onnx/session.ts';
import { Sampler, type SamplerCounters } from '../sample/sampler.ts';
import { readRegular } from '../regular-file.ts';
import { ofRepository } from '../model/model-repository.ts';
import { HttpError } from './http-error.ts';
import { shortened } from './json.ts';
import type { UpdateWeightsRequest } from './requests.ts';

/** A policy version in memory. */
export interface HeldVersion {
  readonly name: string;
  readonly digest: string;
  /** Of what lay beside its weights: tokenizer, template and config decide what the same weights say. Of its template's time, too. */
  readonly texts: string;
  readonly step: number | null;
  readonly weightDir: string;
  readonly loadedAtMs: number;
  readonly model: Pick<ModelFolder, 'config' | 'parameters' | 'tokenizer'>;
  readonly sampler: Sampler;
}

interface Slot {
  readonly version: HeldVersion;
  readonly samplerKey: string;
  requestsInFlight: number;
  /** Larger = used later. */
  lastUse: number;
  /** Who keeps it here, and until when (`performance.now()`). */
  readonly holders: Map<string, number>;
}

interface VersionLimits extends SessionOptions {
  /** Folders below which weights may be loaded, links resolved. */
  readonly allowRoots: readonly string[];
  readonly maxVersions: number;
}

type Counters = { -readonly [Name in keyof SamplerCounters]: number };

const noCounters: SamplerCounters = {
  rowsRunning: 0,
  rowsWaiting: 0,
  tokensTotal: 0,
  keyValueBytesUsed: 0,
  keyValueBytesKept: 0,
  keyValueBytesMax: 0,
  promptTokensTotal: 0,
  promptTokensComputed: 0,
};

function add(total: Counters, counters: SamplerCounters): void {
  for (const name of Object.keys(noCounters) as (keyof SamplerCounters)[]) total[name] += counters[name];
}

/** Of the versions a server has room for, so many are never kept: the newest and the one before belong to whoever trains. */
const versionsNeverKept = 2;

type SampledHow = Pick<UpdateWeightsRequest, 'provider' | 'quantize'>;

/** run:lineage:step, as core/names.ts writes it. */
const policyNamePattern = /^[^:]+:[^:]+:[^:]+$/;

/** The versions a server holds, by name, the newest last. Versions of one architecture share a sampler. */
export class PolicyVersions {
  readonly #limits: VersionLimits;
  readonly #slots = new Map<string, Slot>();
  readonly #samplers = new Map<string, Promise<Sampler>>();
  /** Those of #samplers that are open. */
  readonly #opened = new Set<Sampler>();
  readonly #released: Counters = { ...noCounters };
  #base: { folder: string; stamp: string; parameters: Parameters } | null = null;
  #clock = 0;
  #loading: Promise<unknown> = Promise.resolve();
  /** A load has a sampler before a slot tells of it. */
  #isLoading = false;

  constructor(limits: VersionLimits) {
    this.#limits = limits;
  }

  list(): HeldVersion[] {
    return [...this.#slots.values()].map((slot) => slot.version);
  }

  /** Runs `work` with a version that stays in memory until it is done. Without a name: the only one held. */
  async use<Result>(asked: string | null, work: (version: HeldVersion) => Promise<Result>): Promise<Result> {
    const name = asked ?? this.#onlyName();
    const slot = this.#slots.get(name);
    if (!slot) throw this.#notHeld(name);
    slot.requestsInFlight++;
    slot.lastUse = ++this.#clock;
    try {
      return await work(slot.version);
    } finally {
      slot.requestsInFlight--;
      await this.#evict(null);
    }
  }

  /** Loads a version beside the others; answers when it can be sampled. Loads happen one after the other. */
  load(request: UpdateWeightsRequest): Promise<HeldVersion> {
    const turn = this.#loading.then(async () => {
      this.#isLoading = true;
      try {
        return await this.#load(request);
      } finally {
        this.#isLoading = false;
        await this.#releaseUnusedSamplers();
      }
    });
    this.#loading = turn.catch(() => undefined);
    return turn;
  }

  /**
   * Keeps a version here for so many seconds, whatever is loaded meanwhile; asking again makes it longer. Throws 409 where it
   * is not held, and 429 where so many are kept that none could be loaded beside them.
   */
  keep(name: string, holder: string, seconds: number): HeldVersion {
    const slot = this.#slots.get(name);
    if (!slot) throw this.#notHeld(name, 409);
    if (!isKept(slot)) {
      const kept = [...this.#slots.values()].filter(isKept).length;
      const room = Math.max(0, this.#limits.maxVersions - versionsNeverKept);
      if (kept >= room) {
        const message = `${kept} versions are held already, and this server has room for ${room} of them (--max-versions ${this.#limits.maxVersions}). Ask again when one was released.`;
        throw new HttpError(429, message, { param: 'name', code: 'no_room' });
      }
    }
    slot.holders.set(holder, performance.now() + seconds * 1000);
    return slot.version;
  }

  /** Idempotent, also for a version that is not here. */
  async release(name: string, holder: string): Promise<void> {
    this.#slots.get(name)?.holders.delete(holder);
    await this.#evict(null);
  }

  async close(): Promise<void> {
    await this.#loading;
    this.#slots.clear();
    for (const sampler of this.#samplers.values()) await (await sampler).release();
  }

  /** Over the samplers of all architectures, those of versions that are gone included. */
  counters(): SamplerCounters {
    const total = { ...this.#released };
    for (const sampler of this.#opened) add(total, sampler.counters);
    return total;
  }

  async #load(request: UpdateWeightsRequest): Promise<HeldVersion> {
    const held = this.#slots.get(request.name)?.version;
    const textsAsAsked = (at: string): Promise<string> => textsOf(at, request);
    const isSampledSo = (version: HeldVersion): boolean =>
      this.#slots.get(version.name)?.samplerKey === this.#samplerKey(request, version.model);
    if (held && held.digest === request.digest && isSampledSo(held)) {
      // A folder may be gone by now, as retention removes them: what is held came from it.
      const texts = await this.#resolveAllowed(request.weight_dir, 'weight_dir').then(textsAsAsked, () => held.texts);
      if (texts === held.texts) return held;
    }
    const folder = await this.#resolveAllowed(request.weight_dir, 'weight_dir');
    const texts = await textsAsAsked(folder);
    const model = await this.#loadModel(folder, request);
    const digest = model.parameters.digest();
    requireDigest(request, digest);
    if (held?.digest === digest && held.texts === texts && isSampledSo(held)) return held;
    const samplerKey = this.#samplerKey(request, model);
    const sampler = await this.#sampler(samplerKey, model, request);
    const step = request.step ?? null;
    const loadedAtMs = Date.now();
    const version = { name: request.name, digest, texts, step, weightDir: folder, loadedAtMs, model, sampler };
    const holders = this.#slots.get(request.name)?.holders ?? new Map<string, number>();
    this.#slots.delete(request.name);
    this.#slots.set(request.name, { version, samplerKey, requestsInFlight: 0, lastUse: ++this.#clock, holders });
    await this.#evict(request.name);
    return version;
  }

  /** A folder without a tokenizer gets that of a held version with the same vocabulary. */
  async #loadModel(
    folder: string,
    { template_time: templateTime, quantize }: UpdateWeightsRequest,
  ): Promise<HeldVersion['model']> {
    const options: ModelLoadOptions = {
      templateTime,
      resolveBase: (base) => this.#resolveAllowed(base, 'the base that its adapter_config.json names,'),
      loadBase: (base) => this.#loadBase(base),
      mergesLate: quantize !== undefined,
    };
    if (await isFile(join(folder, 'tokenizer.json'))) return loadModelFolder(folder, options);
    const parameters = await loadParameters(folder, options);
    const { config } = parameters;
    const donor = this.list().find((version) => version.model.config.vocabularySize === config.vocabularySize);
    if (!donor) return loadModelFolder(folder, options);
    return { config, parameters, tokenizer: donor.model.tokenizer };
  }

  /** The base of adapters stays in memory: every step of a LoRA run sends another adapter of the same base. */
  async #loadBase(folder: string): Promise<Parameters> {
    const stamp = await weightsStamp(folder);
    if (this.#base && this.#base.folder === folder && this.#base.stamp === stamp) return this.#base.parameters;
    this.#base = null;
    const parameters = await loadParameters(folder);
    if (stamp !== null) this.#base = { folder, stamp, parameters };
    return parameters;
  }

  /** Versions of one architecture that are sampled in the same way share a sampler. */
  #samplerKey(request: SampledHow, { config }: Pick<ModelFolder, 'config'>): string {
    return `${JSON.stringify(this.#sampledHow(request))} ${JSON.stringify(config)}`;
  }

  #sampledHow({
    provider = this.#limits.provider ?? 'cpu',
    quantize,
  }: SampledHow): Required<SampledHow> & { readonly provider: Provider } {
    return { provider, quantize };
  }

  #sampler(key: string, { config }: Pick<ModelFolder, 'config'>, request: SampledHow): Promise<Sampler> {
    const known = this.#samplers.get(key);
    if (known) return known;
    const opened = Sampler.open(config, { threads: this.#limits.threads, ...this.#sampledHow(request) });
    this.#samplers.set(key, opened);
    void opened.then(
      (sampler) => this.#opened.add(sampler),
      () => this.#samplers.delete(key), // whoever asked is told; the next one tries again
    );
    return opened;
  }

  async #resolveAllowed(folder: string, what: string): Promise<string> {
    const shown = `${what} ${shortened(folder, 500)}`;
    const found = await realpath(folder).catch((error: unknown) => ({ error }));
    for (const root of this.#limits.allowRoots) {
      const realRoot = await realpath(root).catch(() => root);
      if (typeof found === 'string') {
        if (isBelow(realRoot, found)) return found;
      } else if (isBelow(root, resolve(folder)) || isBelow(realRoot, resolve(folder))) {
        const message = `${shown} cannot be read: ${shortened(String(found.error), 500)}`;
        throw new HttpError(404, message, { param: 'weight_dir', cause: found.error });
      }
    }
    // What is not there reads the same outside: nobody learns from it what there is.
    const roots = this.#limits.allowRoots.join(', ') || 'none';
    const message = `${shown} is outside of the allowed roots (${roots}). Start the server with --allow-root.`;
    throw new HttpError(403, message, { param: 'weight_dir' });
  }

  /** Unloads the least recently used versions beyond the limit, never one with a request in flight or a holder, nor `spared`. */
  async #evict(spared: string | null): Promise<void> {
    const idle = [...this.#slots]
      .filter(([name, slot]) => name !== spared && slot.requestsInFlight === 0 && !isKept(slot))
      .toSorted(([, a], [, b]) => a.lastUse - b.lastUse);
    for (const [name] of idle.slice(0, Math.max(0, this.#slots.size - this.#limits.maxVersions))) {
      this.#slots.delete(name);
    }
    await this.#releaseUnusedSamplers();
  }

  async #releaseUnusedSamplers(): Promise<void> {
    if (this.#isLoading || this.#slots.size === 0) return;
    const used = new Set([...this.#slots.values()].map(({ samplerKey }) => samplerKey));
    const unused = [...this.#samplers].filter(([key]) => !used.has(key));
    for (const [key] of unused) this.#samplers.delete(key);
    for (const [, opening] of unused) {
      const opened = await opening;
      await opened.release();
      this.#opened.delete(opened);
      const { tokensTotal, promptTokensTotal, promptTokensComputed } = opened.counters;
      add(this.#released, { ...noCounters, tokensTotal, promptTokensTotal, promptTokensComputed });
    }
  }

  #onlyName(): string {
    const [name, ...others] = this.#slots.keys();
    if (name !== undefined && others.length === 0) return name;
    const message = `Expected "model": one of ${this.#names()}. It may be left out while a single version is held.`;
    throw new HttpError(400, message, { param: 'model' });
  }

  #names(): string {
    return [...this.#slots.keys()].join(', ') || 'none';
  }

  #notHeld(name: string, always?: 409): HttpError {
    const message = `The model "${shortened(name)}" is not held. Held versions: ${this.#names()}. Load it with POST /update_weights.`;
    // The openai client retries a bare 409, which would only repeat the refusal.
    const headers = { 'x-should-retry': 'false' };
    const status = always ?? (policyNamePattern.test(name) ? 409 : 404);
    return new HttpError(status, message, { param: 'model', code: 'model_not_found', headers });
  }
}

function isKept({ holders }: Slot): boolean {
  const now = performance.now();
  for (const [holder, until] of holders) if (until <= now) holders.delete(holder);
  return holders.size > 0;
}

function requireDigest({ name, digest: expected, weight_dir: folder }: UpdateWeightsRequest, actual: string): void {
  if (expected === undefined || expected === actual) return;
  const message = `The weights in ${folder} have digest ${actual}, not ${expected} as asked for ${name}. Nothing was loaded.`;
  throw new HttpError(409, message, {
    param: 'digest',
    code: 'digest_mismatch',
    headers: { 'x-should-retry': 'false' },
  });
}

/** Tells when a folder's weights have changed; null where that cannot be told. */
async function weightsStamp(folder: string): Promise<string | null> {
  for (const name of ['model.safetensors', 'model.safetensors.index.json']) {
    const stats = await stat(join(folder, name)).catch(() => null); // the other may be there
    if (stats) return `${name} ${stats.mtimeMs} ${stats.size}`;
  }
  return null;
}

async function isFile(path: string): Promise<boolean> {
  return stat(path).then(
    (stats) => stats.isFile(),
    () => false,
  );
}

function isBelow(root: string, folder: string): boolean {
  const path = relative(root, folder);
  return path !== '..' && !path.startsWith(`..${sep}`) && !isAbsolute(path);
}

/** The sha256 of all files of a folder but its weights, and of what its chat template is told. */
async function textsOf(folder: string, { template_time: time }: UpdateWeightsRequest): Promise<string> {
  const names = (await readdir(folder)).filter((name) => !name.endsWith('.safetensors')).sort();
  const hash = createHash('sha256').update(time ?? '');
  for (const name of names) {
    const bytes = await readRegular(join(folder, name), undefined, ofRepository(folder)).catch(() => null); // a folder, say
    if (bytes !== null) hash.update(`${name} ${bytes.length}\n`).update(bytes);
  }
  return hash.digest('hex');
}
