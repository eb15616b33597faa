import { createHash } from 'node:crypto';
import { readdir, realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative, resolve, sep } from 'node:path';
import { describeAdapter } from '../model/adapter-folder.ts';
import { loadModelConfig, loadModelTexts, type ModelFolder, resolveBase } from '../model/model-folder.ts';
import type { Parameters } from '../model/parameters.ts';
import { SharedTokenizers } from '../model/tokenizer/shared-tokenizers.ts';
import type { SessionOptions } from '../onnx/session.ts';
import { Sampler, type SamplerCounters } from '../sample/sampler.ts';
import { MemoryTooSmall, type ScoringLimits, type ServerMemory, serverMemory } from '../sample/server-memory.ts';
import { readRegular } from '../../host/regular-file.ts';
import { ofRepository } from '../model/model-repository.ts';
import { HttpError } from './http-error.ts';
import { shortened } from './json.ts';
import { ListedFiles } from './listed-files.ts';
import { ResidentWeights, type WeightSource } from './resident-weights.ts';
import type { UpdateWeightsRequest } from './requests.ts';
import { type StoredWeights, WeightFolders, WeightsGone } from './weight-folders.ts';

/** A policy version that can be sampled. Its weights are loaded on use and unloaded when room is needed. */
export interface HeldVersion {
  readonly name: string;
  readonly digest: string;
  /** Digest by the engine that trained it, if that is not `digest`. */
  readonly knownAs: string | null;
  /**
   * Digest of the files beside the weights (tokenizer, template, config) and of the template's time: they decide the
   * output of the same weights.
   */
  readonly texts: string;
  readonly step: number | null;
  readonly weightDir: string;
  readonly loadedAtMs: number;
  readonly model: Pick<ModelFolder, 'config' | 'tokenizer'>;
  readonly sampler: Sampler;
  readonly scoring: ScoringLimits;
  /** Runs `work` with its weights, which stay in memory until it is done; waits while there is no room for them. */
  readonly withWeights: <Result>(
    work: (parameters: Parameters) => Promise<Result>,
    signal?: AbortSignal,
  ) => Promise<Result>;
}

interface Slot {
  readonly version: HeldVersion;
  readonly samplerKey: string;
  readonly weights: StoredWeights;
  requestsInFlight: number;
  /** Larger = used later. */
  lastUse: number;
  /** Holders of the version, each until a time (`performance.now()`). */
  readonly holders: Map<string, number>;
}

interface VersionLimits extends SessionOptions {
  /** Folders below which weights may be loaded, links resolved. */
  readonly allowRoots: readonly string[];
  readonly maxVersions: number;
  /** Memory budget of the process in GB; null = a default that fits the machine and the model. */
  readonly memoryGb: number | null;
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

/**
 * Slots of a server that kept versions may not fill: the newest version and the one before belong to the training run.
 */
const versionsNeverKept = 2;

type SampledHow = Pick<UpdateWeightsRequest, 'provider' | 'quantize' | 'memory_gb'>;

/** run:lineage:step, as core/names.ts writes it. */
const policyNamePattern = /^[^:]+:[^:]+:[^:]+$/;

/** The versions a server holds, by name, the newest last. Versions of one architecture share a sampler. */
export class PolicyVersions {
  readonly #limits: VersionLimits;
  readonly #log: (line: string) => void;
  readonly #slots = new Map<string, Slot>();
  readonly #samplers = new Map<string, Promise<Sampler>>();
  /** The members of #samplers that are open. */
  readonly #opened = new Set<Sampler>();
  readonly #released: Counters = { ...noCounters };
  /** Memory plans by sampler key. */
  readonly #plans = new Map<string, ServerMemory>();
  readonly #tokenizers = new SharedTokenizers();
  readonly #folders = new WeightFolders({ keepsBase: () => this.#keepsBase });
  readonly #files = new ListedFiles();
  readonly #residents = new ResidentWeights(
    () => this.#roomForWeights(),
    (source) => this.#isAskedFor(source),
  );
  #clock = 0;
  #loading: Promise<unknown> = Promise.resolve();
  /** A loading version has a sampler before it has a slot. */
  #isLoading = false;

  constructor(limits: VersionLimits, log: (line: string) => void = () => undefined) {
    this.#limits = limits;
    this.#log = log;
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
   * Keeps a version here for so many seconds, whatever is loaded meanwhile; a repeated call extends the time. Throws
   * 409 if it is not held, and 429 if so many are kept that none could be loaded beside them.
   */
  keep(name: string, holder: string, seconds: number): HeldVersion {
    const slot = this.#slots.get(name);
    if (!slot) throw this.#notHeld(name, { always: 409 });
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

  /** Bytes of loaded weights, including their packed form in sessions. */
  get weightBytes(): number {
    return this.#residents.bytes + this.#folders.baseBytes;
  }

  /** Memory budget of the process in bytes; null before the first version. */
  get budgetBytes(): number | null {
    const budgets = [...this.#plans.values()].map(({ budgetBytes }) => budgetBytes);
    return budgets.length === 0 ? null : Math.max(...budgets);
  }

  async close(): Promise<void> {
    await this.#loading;
    this.#slots.clear();
    for (const sampler of this.#samplers.values()) await (await sampler).release();
  }

  /** Sums over the samplers of all architectures, including those whose versions are no longer held. */
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
    const isAsked = ({ digest, knownAs }: HeldVersion): boolean =>
      request.digest !== undefined && (digest === request.digest || knownAs === request.digest);
    if (held && isAsked(held) && isSampledSo(held)) {
      // The folder may be gone, since retention removes them: the held version came from it.
      const texts = await this.#resolveAllowed(request.weight_dir, 'weight_dir').then(textsAsAsked, () => held.texts);
      if (texts === held.texts) return held;
    }
    const folder = await this.#resolveAllowed(request.weight_dir, 'weight_dir');
    const texts = await textsAsAsked(folder);
    const model = await this.#describe(folder, request);
    const samplerKey = this.#samplerKey(request, model);
    const memory = await this.#plan(samplerKey, model, request);
    const sampler = await this.#sampler(samplerKey, model, request, memory);
    const weights = await this.#weights(folder, {
      samplerKey,
      isBeside: request.quantize !== undefined,
      memory,
      sampler,
    });
    const { digest } = weights;
    const knownAs = await this.#knownAs(request, { folder, digest });
    if (held?.digest === digest && held.knownAs === knownAs && held.texts === texts && isSampledSo(held)) return held;
    const step = request.step ?? null;
    const version: HeldVersion = {
      name: request.name,
      digest,
      knownAs,
      texts,
      step,
      weightDir: folder,
      loadedAtMs: Date.now(),
      model,
      sampler,
      scoring: memory.scoring,
      withWeights: (work, signal) => this.#withWeights(slot, work, signal),
    };
    const replaced = this.#slots.get(request.name);
    const holders = replaced?.holders ?? new Map<string, number>();
    const slot: Slot = { version, samplerKey, weights, requestsInFlight: 0, lastUse: ++this.#clock, holders };
    this.#slots.delete(request.name);
    this.#slots.set(request.name, slot);
    if (replaced) await this.#dropWeights(replaced);
    await this.#evict(request.name);
    return version;
  }

  /**
   * The name that the client has for loaded weights, if it is not their digest. Throws unless they have the digest that was asked for, or
   * the files.
   */
  async #knownAs(
    { name, digest: expected, sums }: UpdateWeightsRequest,
    { folder, digest }: { readonly folder: string; readonly digest: string },
  ): Promise<string | null> {
    if (expected === undefined || expected === digest) return null;
    const resolveFolder = (base: string): Promise<string> => this.#resolveBase(base);
    if (sums !== undefined && (await this.#files.areIn(folder, sums, { resolveFolder }))) return expected;
    const message = `The weights in ${folder} have digest ${digest}, not ${expected} as asked for ${name}${sums === undefined ? '' : ', and its files are not those of the version'}. Nothing was loaded.`;
    throw new HttpError(409, message, {
      param: 'digest',
      code: 'digest_mismatch',
      headers: { 'x-should-retry': 'false' },
    });
  }

  /** A folder without a tokenizer gets that of a held version with an equal vocabulary. */
  async #describe(
    folder: string,
    { template_time: templateTime }: UpdateWeightsRequest,
  ): Promise<HeldVersion['model']> {
    const resolveAllowedBase = (base: string): Promise<string> => this.#resolveBase(base);
    const options = { templateTime, resolveBase: resolveAllowedBase, tokenizers: this.#tokenizers };
    // Only config and tokenizer are kept: the texts take some megabytes.
    const load = async (): Promise<HeldVersion['model']> => {
      const { config, tokenizer } = await loadModelTexts(folder, options);
      return { config, tokenizer };
    };
    if (await isFile(join(folder, 'tokenizer.json'))) return load();
    const adapter = await describeAdapter(folder);
    const config = await loadModelConfig(adapter ? await resolveBase(adapter.baseFolder, folder, options) : folder);
    const donor = this.list().find((version) => version.model.config.vocabularySize === config.vocabularySize);
    return donor ? { config, tokenizer: donor.model.tokenizer } : load();
  }

  #resolveBase(folder: string): Promise<string> {
    return this.#resolveAllowed(folder, 'the base that its adapter_config.json names,');
  }

  /** Finds a version's weights and how to load them. Their digest is known only after loading. */
  async #weights(
    folder: string,
    how: { samplerKey: string; isBeside: boolean; memory: ServerMemory; sampler: Sampler },
  ): Promise<StoredWeights> {
    const adapter = await describeAdapter(folder);
    const { samplerKey, isBeside, memory, sampler } = how;
    const handling = { bytes: memory.versionBytes, close: (parameters: Parameters) => sampler.forget(parameters) };
    const useNow = this.#residents.use.bind(this.#residents);
    if (!adapter) return this.#folders.plain(folder, handling, useNow);
    const base = await resolveBase(adapter.baseFolder, folder, { resolveBase: (at) => this.#resolveBase(at) });
    const place = { folder, base, lora: adapter.lora, besideAs: isBeside ? samplerKey : null };
    return this.#folders.adapted(place, handling, useNow);
  }

  async #withWeights<Result>(
    slot: Slot,
    work: (parameters: Parameters) => Promise<Result>,
    signal?: AbortSignal,
  ): Promise<Result> {
    const { name } = slot.version;
    try {
      return await this.#residents.use(slot.weights.source, (read) => slot.weights.use(read, work), signal);
    } catch (error) {
      if (!(error instanceof WeightsGone)) throw error;
      // Unloads the version, so that a client loads it again from its present place.
      if (this.#slots.get(name) === slot) this.#slots.delete(name);
      this.#log(`letting go of ${name}: ${error.message}`);
      throw this.#notHeld(name, { why: error.message });
    }
  }

  async #dropWeights({ weights }: Slot): Promise<void> {
    await weights.forget();
    const isShared = [...this.#slots.values()].some((other) => other.weights.source === weights.source);
    if (!isShared) await this.#residents.drop(weights.source);
  }

  /**
   * Whether a version with these weights is kept or sampled: if they cannot be read again, they stay, even beyond the
   * plan.
   */
  #isAskedFor(source: WeightSource): boolean {
    return [...this.#slots.values()].some(
      (slot) => slot.weights.source === source && (slot.requestsInFlight > 0 || isKept(slot)),
    );
  }

  get #keepsBase(): boolean {
    return [...this.#plans.values()].every(({ keepsBase }) => keepsBase);
  }

  #roomForWeights(): number {
    const plans = [...this.#plans.values()];
    if (plans.length === 0) return 0;
    const largest = Math.max(...plans.map(({ versionBytes }) => versionBytes));
    const room = Math.max(largest, Math.min(...plans.map(({ weightBytesMax }) => weightBytesMax)));
    return room - (this.#keepsBase ? this.#folders.baseBytes : 0);
  }

  /** Unused versions that are not kept leave if there is no room beside them. */
  async #plan(key: string, { config }: Pick<ModelFolder, 'config'>, request: SampledHow): Promise<ServerMemory> {
    const known = this.#plans.get(key);
    if (known) return known;
    const use = { ...this.#memoryAsked(request), quantize: request.quantize };
    const planned = (): ServerMemory => serverMemory(config, { ...use, others: [...this.#plans.values()] });
    let memory: ServerMemory;
    try {
      memory = planned();
    } catch (error) {
      if (!(error instanceof MemoryTooSmall) || this.#plans.size === 0) throw error;
      serverMemory(config, use); // throws if there is no room for it alone either
      const idle = [...this.#slots].filter(
        ([, slot]) => slot.samplerKey !== key && slot.requestsInFlight === 0 && !isKept(slot),
      );
      for (const [name] of idle) this.#slots.delete(name);
      for (const [, slot] of idle) await this.#dropWeights(slot);
      await this.#releaseSamplersBut(key);
      memory = planned();
    }
    this.#plans.set(key, memory);
    return memory;
  }

  /** Largest budget of any version, because all versions share the process. */
  #memoryAsked(request: SampledHow): { memoryGb: number | null } {
    const asked = [request.memory_gb, this.#limits.memoryGb].filter((gb) => gb != null);
    return { memoryGb: asked.length === 0 ? null : Math.max(...asked) };
  }

  /** Versions of one architecture with equal settings share a sampler. */
  #samplerKey(request: SampledHow, { config }: Pick<ModelFolder, 'config'>): string {
    return `${JSON.stringify(this.#sampledHow(request))} ${JSON.stringify(config)}`;
  }

  #sampledHow({ provider = this.#limits.provider ?? 'cpu', quantize, ...request }: SampledHow) {
    return { provider, quantize, ...this.#memoryAsked(request) };
  }

  #sampler(
    key: string,
    { config }: Pick<ModelFolder, 'config'>,
    request: SampledHow,
    { limits }: ServerMemory,
  ): Promise<Sampler> {
    const known = this.#samplers.get(key);
    if (known) return known;
    const { provider, quantize } = this.#sampledHow(request);
    const opened = Sampler.open(config, { threads: this.#limits.threads, provider, quantize, limits });
    this.#samplers.set(key, opened);
    void opened.then(
      (sampler) => this.#opened.add(sampler),
      () => this.#samplers.delete(key), // the caller gets the error; the next one tries again
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
    // The same message for a missing folder outside: clients must not learn which folders exist.
    const roots = this.#limits.allowRoots.join(', ') || 'none';
    const message = `${shown} is outside of the allowed roots (${roots}). Start the server with --allow-root.`;
    throw new HttpError(403, message, { param: 'weight_dir' });
  }

  /** Unloads the least recently used versions beyond the limit, never one with a request in flight or a holder, nor `spared`. */
  async #evict(spared: string | null): Promise<void> {
    const idle = [...this.#slots]
      .filter(([name, slot]) => name !== spared && slot.requestsInFlight === 0 && !isKept(slot))
      .toSorted(([, a], [, b]) => a.lastUse - b.lastUse);
    const evicted = idle.slice(0, Math.max(0, this.#slots.size - this.#limits.maxVersions));
    for (const [name] of evicted) this.#slots.delete(name);
    for (const [, slot] of evicted) await this.#dropWeights(slot);
    await this.#releaseUnusedSamplers();
  }

  async #releaseUnusedSamplers(): Promise<void> {
    if (this.#isLoading || this.#slots.size === 0) return;
    await this.#releaseSamplersBut(null);
  }

  /** Those that no version has, `spared` excepted. */
  async #releaseSamplersBut(spared: string | null): Promise<void> {
    const used = new Set([spared, ...[...this.#slots.values()].map(({ samplerKey }) => samplerKey)]);
    for (const key of this.#plans.keys()) if (!used.has(key)) this.#plans.delete(key);
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

  #notHeld(name: string, { always, why }: { always?: 409; why?: string } = {}): HttpError {
    const reason = why === undefined ? '' : ` any more, as ${shortened(why, 500)}`;
    const message = `The model "${shortened(name)}" is not held${reason}. Held versions: ${this.#names()}. Load it with POST /update_weights.`;
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

/** The sha256 of a folder's files except weights, and of the chat template's time. */
async function textsOf(folder: string, { template_time: time }: UpdateWeightsRequest): Promise<string> {
  const names = (await readdir(folder)).filter((name) => !name.endsWith('.safetensors')).sort();
  const hash = createHash('sha256').update(time ?? '');
  for (const name of names) {
    const bytes = await readRegular(join(folder, name), undefined, ofRepository(folder)).catch(() => null); // it may be a folder
    if (bytes !== null) hash.update(`${name} ${bytes.length}\n`).update(bytes);
  }
  return hash.digest('hex');
}
