import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { InferenceSpec } from '../../../config/run-spec.ts';
import { openInference } from '../../../backends/inference/index.ts';
import type { ServedPolicy } from '../../../core/rl/run-state.ts';
import { loadModelFolder, type PolicyServer, saveModelFolder, startPolicyServer } from '../../../engine/index.ts';
import { type Adding, SlotModel } from './engine.ts';

export interface SequenceWish {
  readonly tokens: readonly number[];
  readonly max_tokens: number;
  readonly temperature: number;
  readonly seed: number;
  readonly stop: readonly number[];
  readonly top_k: number;
  readonly top_p: number;
}

interface SlotsOptions {
  readonly base: string;
  readonly folder: string;
  readonly count: number;
  /** What is sampled: a checkpoint in its model, any checkpoint, or the weights that were saved for it last. */
  readonly sampling: 'in the model' | 'apart' | 'latest';
  /** Holds one model at a time. */
  readonly holdsOne: boolean;
  readonly adding: Adding;
  readonly ignoresAdam: boolean;
  /** Samplers get the whole model, with the adapter merged into it. */
  readonly merges: boolean;
  /** Trains all weights, too. */
  readonly takesRankZero: boolean;
}

/** The models that are loaded, in a limited number of slots, and sampling from them through the embedded policy server. */
export class Slots {
  readonly #base: string;
  readonly #folder: string;
  readonly #options: SlotsOptions;
  readonly #models = new Map<string, SlotModel>();
  /** Slots whose model was unloaded, to be used again: graphs are built once. */
  readonly #spare: { readonly slot: SlotModel; readonly seed: number }[] = [];
  readonly #seeds = new Map<string, number>();
  readonly #server: PolicyServer;
  readonly #inference: ReturnType<typeof openInference>;
  readonly #policies = new Map<string, Promise<ServedPolicy>>();
  /** What was saved for the sampler last, by model. */
  readonly #latest = new Map<string, string>();
  #exports = 0;

  private constructor(options: SlotsOptions, server: PolicyServer) {
    this.#base = options.base;
    this.#folder = options.folder;
    this.#options = options;
    this.#server = server;
    this.#inference = openInference(InferenceSpec.parse({ kind: 'embedded', url: server.url }), '');
  }

  static async open(options: SlotsOptions): Promise<Slots> {
    return new Slots(
      options,
      await startPolicyServer({ key: null, threads: 1, allowRoots: [options.folder, options.base], maxVersions: 6 }),
    );
  }

  folderOf(checkpoint: string): string {
    return path.join(this.#folder, 'checkpoints', checkpoint);
  }

  async create(model: string, { rank, seed }: { readonly rank: number; readonly seed: number }): Promise<void> {
    const { count, holdsOne, adding, ignoresAdam, takesRankZero } = this.#options;
    if (holdsOne && this.#models.size > 0) throw new Error('This backend supports a single policy model');
    if (this.#models.size >= count) throw new Error(`Maximum number of LoRA adapters (${count + 1}) reached`);
    if (rank < (takesRankZero ? 0 : 1) || rank > 32) throw new Error(`LoRA rank ${rank} must be between 1 and 32`);
    const at = this.#spare.findIndex((spare) => spare.slot.rank === rank && spare.seed === seed);
    const slot =
      at >= 0
        ? this.#spare.splice(at, 1)[0]!.slot
        : await SlotModel.open(this.#base, { rank, seed, adding, ignoresAdam });
    if (at >= 0) await slot.reset();
    this.#models.set(model, slot);
    this.#seeds.set(model, seed);
  }

  get(model: string): SlotModel {
    const slot = this.#models.get(model);
    if (slot) return slot;
    throw new Error(`Model ${model} not loaded (likely stale request from previous server)`);
  }

  async saveForSampler(model: string, checkpoint: string): Promise<void> {
    const folder = this.folderOf(checkpoint);
    const digest = await this.get(model).saveForSampler(folder);
    if (this.#options.merges && this.get(model).rank > 0) {
      const merged = await loadModelFolder(folder);
      await rm(folder, { recursive: true });
      await saveModelFolder(merged, folder);
    }
    await writeFile(`${folder}.digest`, digest);
    this.#latest.set(model, checkpoint);
  }

  unload(model: string): Promise<{ model_id: string; status: string }> {
    const slot = this.#models.get(model);
    if (slot) this.#spare.push({ slot, seed: this.#seeds.get(model)! });
    this.#models.delete(model);
    return Promise.resolve({ model_id: model, status: 'unloaded' });
  }

  /** `policy`: the digest of what was sampled from. */
  async sample(model: string, checkpoint: string, wish: SequenceWish) {
    const { tokens: promptTokenIds, max_tokens: maxTokens, temperature, seed, top_k: topK, top_p: topP } = wish;
    const policy = await this.#policyOf(model, checkpoint);
    const sample = await this.#inference.sample({
      policy,
      promptTokenIds,
      maxTokens,
      temperature,
      seed,
      topP,
      ...(topK > 0 ? { topK } : {}),
    });
    // The engine ends at the model's own end tokens; a server of this kind ends only at the requested ones.
    return {
      policy: policy.version.digest,
      stop_reason: sample.finishReason,
      tokens: sample.tokenIds,
      logprobs: sample.logprobs,
    };
  }

  /** Log probability of each token after the first. */
  async score(model: string, checkpoint: string, tokens: readonly number[]): Promise<readonly number[]> {
    const positions = tokens.slice(1).map((_, i) => i + 1);
    const policy = await this.#policyOf(model, checkpoint);
    return (await this.#inference.score!({ policy, tokenIds: tokens, positions }))!;
  }

  async close(): Promise<void> {
    this.#inference.close?.();
    await this.#server.close();
    for (const slot of [...this.#models.values(), ...this.#spare.map((spare) => spare.slot)]) await slot.close();
  }

  /**
   * Policy of a sampled checkpoint: it is loaded into the slot, over what is there, unless it was loaded last; then the
   * slot is sampled from in its present state, trained on or not.
   */
  async #policyOf(model: string, checkpoint: string): Promise<ServedPolicy> {
    const { sampling } = this.#options;
    if (sampling === 'latest') {
      this.get(model);
      const latest = this.#latest.get(model) ?? checkpoint;
      const at = this.folderOf(latest);
      return this.#served(latest, at, () => readFile(`${at}.digest`, 'utf8'));
    }
    const folder = this.folderOf(checkpoint);
    if (sampling === 'apart') return this.#served(checkpoint, folder, () => readFile(`${folder}.digest`, 'utf8'));
    const slot = this.get(model);
    if (slot.loadedCheckpoint !== checkpoint) await slot.loadForSampling(this.folderOf(checkpoint), checkpoint);
    else if (slot.hasMoved) {
      const now = this.folderOf(`exports/${++this.#exports}`);
      await slot.saveForSampler(now);
      return this.#served(`export-${this.#exports}`, now, () => slot.digest());
    }
    return this.#served(checkpoint, folder, () => slot.digest());
  }

  #served(key: string, folder: string, digestOf: () => Promise<string>): Promise<ServedPolicy> {
    const known = this.#policies.get(key);
    if (known) return known;
    const made = digestOf().then((digest): ServedPolicy => ({
      name: key.replaceAll(/[^\w.-]/g, '.'),
      folder,
      version: {
        step: 0,
        digest,
        weights: '',
        file: { key: '', sha256: '', bytes: 0 },
        sums: { key: '', sha256: '', bytes: 0 },
      },
    }));
    this.#policies.set(key, made);
    return made;
  }
}
