import { realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative, sep } from 'node:path';
import { loadModelFolder, loadParameters, type ModelFolder } from '../model/model-folder.ts';
import type { SessionOptions } from '../onnx/session.ts';
import { Sampler } from '../sample/sampler.ts';
import { HttpError } from './http.ts';
import type { UpdateWeightsRequest } from './wire.ts';

/** A policy version in memory. */
export interface HeldVersion {
  readonly name: string;
  readonly digest: string;
  readonly step: number | null;
  readonly weightDir: string;
  readonly loadedAtMs: number;
  readonly model: Pick<ModelFolder, 'config' | 'parameters' | 'tokenizer'>;
  readonly sampler: Sampler;
}

interface Slot {
  readonly version: HeldVersion;
  requestsInFlight: number;
  /** Larger = used later. */
  lastUse: number;
}

export interface VersionLimits extends SessionOptions {
  /** Folders below which weights may be loaded, links resolved. */
  readonly allowRoots: readonly string[];
  readonly maxVersions: number;
}

/** run:lineage:step, as core/names.ts writes it. */
const policyNamePattern = /^[^:]+:[^:]+:[^:]+$/;

/** The versions a server holds, by name, the newest last. Versions of one architecture share a sampler. */
export class PolicyVersions {
  readonly #limits: VersionLimits;
  readonly #slots = new Map<string, Slot>();
  readonly #samplers = new Map<string, Promise<Sampler>>();
  #clock = 0;
  #loading: Promise<unknown> = Promise.resolve();

  constructor(limits: VersionLimits) {
    this.#limits = limits;
  }

  list(): HeldVersion[] {
    return [...this.#slots.values()].map((slot) => slot.version);
  }

  /** Runs `work` with a version that stays in memory until it is done. */
  async use<Result>(name: string, work: (version: HeldVersion) => Promise<Result>): Promise<Result> {
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
    const turn = this.#loading.then(() => this.#load(request));
    this.#loading = turn.catch(() => undefined);
    return turn;
  }

  async close(): Promise<void> {
    await this.#loading;
    this.#slots.clear();
    for (const sampler of this.#samplers.values()) await (await sampler).release();
  }

  async counters(): Promise<{ rowsRunning: number; rowsWaiting: number; tokensTotal: number }> {
    const total = { rowsRunning: 0, rowsWaiting: 0, tokensTotal: 0 };
    for (const sampler of this.#samplers.values()) {
      const counters = (await sampler).counters;
      total.rowsRunning += counters.rowsRunning;
      total.rowsWaiting += counters.rowsWaiting;
      total.tokensTotal += counters.tokensTotal;
    }
    return total;
  }

  async #load(request: UpdateWeightsRequest): Promise<HeldVersion> {
    const held = this.#slots.get(request.name)?.version;
    if (held && held.digest === request.digest) return held;
    const folder = await this.#resolveAllowed(request.weight_dir);
    const model = await this.#loadModel(folder);
    const digest = model.parameters.digest();
    requireDigest(request, digest);
    if (held?.digest === digest) return held;
    const sampler = await this.#sampler(model);
    const step = request.step ?? null;
    const version = { name: request.name, digest, step, weightDir: folder, loadedAtMs: Date.now(), model, sampler };
    this.#slots.delete(request.name);
    this.#slots.set(request.name, { version, requestsInFlight: 0, lastUse: ++this.#clock });
    await this.#evict(request.name);
    return version;
  }

  /** A folder without a tokenizer gets that of a held version with the same vocabulary. */
  async #loadModel(folder: string): Promise<HeldVersion['model']> {
    if (await isFile(join(folder, 'tokenizer.json'))) return loadModelFolder(folder);
    const parameters = await loadParameters(folder);
    const { config } = parameters;
    const donor = this.list().find((version) => version.model.config.vocabularySize === config.vocabularySize);
    if (!donor) return loadModelFolder(folder);
    return { config, parameters, tokenizer: donor.model.tokenizer };
  }

  #sampler({ config }: Pick<ModelFolder, 'config'>): Promise<Sampler> {
    const key = JSON.stringify(config);
    const sampler = this.#samplers.get(key) ?? Sampler.open(config, this.#limits);
    this.#samplers.set(key, sampler);
    return sampler;
  }

  async #resolveAllowed(folder: string): Promise<string> {
    const resolved = await realpath(folder).catch((cause: unknown) => {
      throw new HttpError(404, `weight_dir ${folder} cannot be read: ${String(cause)}`, { param: 'weight_dir', cause });
    });
    for (const root of this.#limits.allowRoots) {
      const path = relative(await realpath(root).catch(() => root), resolved);
      if (path !== '..' && !path.startsWith(`..${sep}`) && !isAbsolute(path)) return resolved;
    }
    const roots = this.#limits.allowRoots.join(', ') || 'none';
    const message = `weight_dir ${folder} lies outside of the allowed roots (${roots}). Start the server with --allow-root.`;
    throw new HttpError(403, message, { param: 'weight_dir' });
  }

  /** Unloads the least recently used versions beyond the limit, never one with a request in flight, nor `kept`. */
  async #evict(kept: string | null): Promise<void> {
    const idle = [...this.#slots]
      .filter(([name, slot]) => name !== kept && slot.requestsInFlight === 0)
      .toSorted(([, a], [, b]) => a.lastUse - b.lastUse);
    for (const [name] of idle.slice(0, Math.max(0, this.#slots.size - this.#limits.maxVersions))) {
      this.#slots.delete(name);
    }
    await this.#releaseUnusedSamplers();
  }

  async #releaseUnusedSamplers(): Promise<void> {
    const used = new Set(this.list().map(({ model }) => JSON.stringify(model.config)));
    for (const [key, sampler] of this.#samplers) {
      if (used.has(key) || this.#slots.size === 0) continue;
      this.#samplers.delete(key);
      await (await sampler).release();
    }
  }

  #notHeld(name: string): HttpError {
    const held = [...this.#slots.keys()].join(', ') || 'none';
    const message = `The model "${name}" is not held. Held versions: ${held}. Load it with POST /update_weights.`;
    // The openai client retries a bare 409, which would only repeat the refusal.
    const headers = { 'x-should-retry': 'false' };
    const status = policyNamePattern.test(name) ? 409 : 404;
    return new HttpError(status, message, { param: 'model', code: 'model_not_found', headers });
  }
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

async function isFile(path: string): Promise<boolean> {
  return stat(path).then(
    (stats) => stats.isFile(),
    () => false,
  );
}
