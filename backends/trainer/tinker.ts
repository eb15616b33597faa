import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import {
  batchOf,
  miniBatches,
  type PackedRow,
  type Rows,
  rowsOf,
  type TrainBatch,
  type TrainSample,
} from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import type { OptimizerSpec, TinkerTrainerSpec } from '../../config/run-spec.ts';
import { isTinkerLoss } from '../../config/models/tinker-spec.ts';
import { readTextFiles } from '../../engine/index.ts';
import { failpoint } from '../../store/failpoints.ts';
import { processesOpen } from '../../host/processes-open.ts';
import { supervisedBatch } from '../tinker/batch.ts';
import { BatchGradient, notFinite, runBatch, tokenLogprobs } from '../tinker/batch-gradient.ts';
import { type ClientOptions, downloadAdapter, isTrouble, TinkerClient, type TinkerModel } from '../tinker/index.ts';
import { loadModel, onlyModelOf, trainerError } from '../tinker/load-model.ts';
import { refusalOf, supervisedPassMetrics } from '../tinker/pass-metrics.ts';
import {
  adapterDigest,
  asPeft,
  endTokensIn,
  readAdapterFiles,
  readVersion,
  strangeTensor,
  type TinkerVersion,
  type VersionFolder,
  writeVersion,
} from '../tinker/version-files.ts';
import type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** Attempts of a step, from the version before it, after the server lost the model. */
const stepAttemptsMax = 3;
/** Models with fixed weights for sampling: the newest version's, and the one that rollouts still end on. */
const servedModelsMax = 2;

const OptimizerDocument = z.strictObject({
  format: z.literal('ratchet-tinker-optimizer-1'),
  url: z.string(),
  trainingPath: z.string(),
  digest: z.string(),
});

interface StepInput {
  readonly plan: StepPlan;
  readonly batch: TrainBatch;
  readonly referenceFolder?: string;
  readonly tellsTokens?: boolean;
}

/**
 * Trains adapters on a server of the Tinker API. The server's state is a cache: a version *is* its adapter, which is
 * downloaded after every step, and training resumes from the server's own checkpoint of it. So a step uses a model that
 * was loaded from the version before. If anything happens to that model, another one is loaded and the whole step
 * repeated; an optim_step is never sent alone, nor twice.
 *
 * SkyRL samples from a model by loading a checkpoint into it, in training or not. There each step has a model of its
 * own, which is never trained again: its version is sampled from it, while the next model is loaded beside.
 */
export class TinkerTrainer implements Trainer {
  readonly #spec: TinkerTrainerSpec;
  readonly #say: (line: string) => void;
  readonly #client: TinkerClient;
  /** The version in the model. */
  #at: VersionFolder | null = null;
  #withOptimizer = false;
  #part: TrainedPart | null = null;
  /** The model with that version, loaded or loading. */
  #model: Promise<TinkerModel> | null = null;
  /** Models after the step that made their version; they are not trained any more. */
  #served: TinkerModel[] = [];
  /** Whether supervised steps followed that version. */
  #hasMoved = false;
  /** Models that were loaded because another one was lost. */
  #restores = 0;
  readonly #gradients: BatchGradient;
  /** Model of the KL penalty's reference. */
  #reference: { readonly digest: string; readonly model: Promise<TinkerModel> } | null = null;

  constructor(spec: TinkerTrainerSpec, options: ClientOptions = {}) {
    this.#spec = spec;
    this.#gradients = new BatchGradient(spec.reduction);
    this.#say = options.say ?? (() => undefined);
    this.#client = new TinkerClient(spec, options);
    // A process that ends unloads its models: the next run may need the room before the session is over.
    processesOpen.add(() => this.#unloadAll());
  }

  async makeBase(
    folder: string,
    options: TrainedPart & { files: Readonly<Record<string, string>> },
  ): Promise<{ digest: string }> {
    const { files, ...part } = options;
    const { r: rank } = adaptersOf(part);
    return this.#translated(async () => {
      const baseModel = this.#spec.baseModel ?? (await onlyModelOf(this.#client));
      const { 'config.json': _, ...texts } = files; // beside an adapter it would promise missing weights
      const begun = { baseModel, rank, seed: part.seed, endTokenIds: endTokensIn(files) };
      await this.#unloadAll();
      this.#part = part;
      const model = await this.#loaded({ ...begun, from: null, optimizer: false });
      this.#model = Promise.resolve(model);
      await this.#anchor(model, { ...begun, texts });
      await writeVersion(folder, this.#held());
      return { digest: this.#held().version.digest };
    });
  }

  async open(folder: string, part: TrainedPart): Promise<{ digest: string }> {
    const { r: rank } = adaptersOf(part);
    const version = await readVersion(folder);
    if (version.rank !== rank) {
      throw new RatchetError(
        'ModelUnsupported',
        `${folder} holds an adapter of rank ${version.rank}; [lora] r is ${rank}.`,
      );
    }
    const adapter = await readAdapterFiles(folder);
    const digest = adapterDigest(adapter.get('adapter_model.safetensors')!);
    await this.#unloadAll(version.modelId);
    this.#part = part;
    this.#at = { version: { ...version, digest }, adapter, texts: await readTextFiles(folder) };
    this.#withOptimizer = false;
    this.#hasMoved = false;
    return { digest };
  }

  waitsFor(): string | null {
    return this.#client.http.waits.longest;
  }

  async trainStep({ tellsTokens = false, ...input }: StepInput): Promise<TrainOutcome> {
    return this.#translated(async () => {
      assert(!this.#hasMoved, 'a version is what a step begins from');
      for (let attempt = 1; ; attempt++) {
        try {
          const { logprobs, ...outcome } = await this.#step(input);
          const isTold = tellsTokens && outcome.applied && logprobs.length === input.batch.rows.length;
          return isTold ? { ...outcome, scores: { logprobs, entropies: null } } : outcome;
        } catch (error) {
          this.#discard();
          void this.#forgetReference().catch(() => undefined); // as lost as the other one may be
          if (!isTrouble(error, 'lost', 'failed') || attempt === stepAttemptsMax) throw error;
          this.#restores += 1;
          this.#say(
            `step ${input.plan.step}: ${error.message}. Beginning it again from ${this.#held().version.trainingPath}.`,
          );
        }
      }
    });
  }

  async sftStep(input: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    const { samples, learningRate, optimizer } = input;
    if (input.normalizer !== undefined)
      throw new RatchetError(
        'Unsupported',
        'A Tinker server learns rows here, not pairs: expected [sft] loss = "cross_entropy".',
      );
    return this.#translated(async () => {
      const model = await this.#ready();
      const batch = supervisedBatch(rowsOf(samples).rows, this.#spec.reduction);
      const logprobs = await runBatch(model, batch, samples);
      if (logprobs === null) return { applied: false, reason: notFinite, metrics: {} };
      const metrics = await supervisedPassMetrics(samples, logprobs);
      const reason = refusalOf(metrics);
      if (reason !== null) return { applied: false, reason, metrics };
      this.#hasMoved = true;
      return {
        applied: true,
        metrics: { ...metrics, ...stepMetrics(await model.optimStep(adam(optimizer, learningRate))) },
      };
    });
  }

  async digest(): Promise<string> {
    await this.#translated(async () => {
      if (this.#hasMoved) await this.#anchor(await this.#ready());
    });
    return this.#held().version.digest;
  }

  /** The adapter names its base by the server's name; `base`, a folder of ours, has no weights of it. */
  async exportTo(folder: string): Promise<void> {
    await this.digest();
    await writeVersion(folder, this.#held());
  }

  async logprobs(samples: readonly PackedRow[], temperature: number): Promise<readonly Float32Array[]> {
    assert.equal(temperature, 1, 'these servers train at temperature 1');
    return this.#translated(async () => {
      const model = this.#served.at(-1) ?? (await this.#ready());
      return tokenLogprobs(model, samples);
    });
  }

  /** A reference to the server's copy: the moments themselves never leave it. */
  async saveOptimizer(): Promise<Uint8Array> {
    await this.digest();
    const { url, trainingPath, digest } = this.#held().version;
    const format = 'ratchet-tinker-optimizer-1';
    return Buffer.from(`${JSON.stringify({ format, url, trainingPath, digest })}\n`);
  }

  async restoreOptimizer(state: Uint8Array | null): Promise<void> {
    await this.digest();
    const { version } = this.#held();
    const document = state && OptimizerDocument.parse(JSON.parse(Buffer.from(state).toString('utf8')));
    if (document && document.digest !== version.digest) {
      throw new RatchetError(
        'CheckpointDamaged',
        `The optimizer’s state is of the adapter ${document.digest.slice(0, 12)}…, the weights are ${version.digest.slice(0, 12)}….`,
      );
    }
    if (document) this.#at = { ...this.#held(), version: { ...version, trainingPath: document.trainingPath } };
    this.#withOptimizer = document !== null;
    this.#discard();
    // Done now, so that a missing checkpoint is found while an older one can still be resumed from.
    await this.#translated(async () => this.#ready());
  }

  /** The last version's model stays while the server keeps it: evaluations may continue without a trainer. */
  async close(): Promise<void> {
    await this.#forgetReference();
    await this.#gradients.close();
    await this.#unloadAll(this.#at?.version.modelId);
    this.#client.close();
  }

  /** Returns the log probabilities of its first pass as well. */
  async #step({
    plan,
    batch,
    referenceFolder,
  }: Omit<StepInput, 'tellsTokens'>): Promise<TrainOutcome & { readonly logprobs: readonly Float32Array[] }> {
    const { optimizer, learningRate, numIterations, klBeta } = plan;
    const { digest } = this.#held().version;
    requireKnown(plan);
    const referenceLogprobs = klBeta > 0 ? await this.#referenceScores(referenceFolder, batch) : undefined;
    const model = await this.#ready();
    let metrics: Record<string, number> = {};
    const logprobs: Float32Array[] = [];
    const refuse = (reason: string) => ({ ...this.#refused(reason, metrics, digest), logprobs });
    const parts = miniBatches(batch, plan.numMiniBatches ?? 1);
    for (let number = 0; number < numIterations * parts.length; number++) {
      const part = parts[number % parts.length]!;
      const computed = await this.#gradients.compute(model, {
        plan,
        batch: batchOf(part),
        ...(referenceLogprobs && {
          referenceLogprobs: referenceLogprobs.slice(part.first, part.first + part.rows.length),
        }),
      });
      metrics = computed.metrics;
      if (number < parts.length) logprobs.push(...(computed.logprobs ?? []));
      const refused = computed.refused ?? refusalOf(metrics);
      if (refused !== null) return refuse(refused);
      await failpoint('tinker.gradients');
      metrics = { ...metrics, ...stepMetrics(await model.optimStep(adam(optimizer, learningRate))) };
      const strange = refusalOf(metrics);
      if (strange !== null) return refuse(strange);
      await failpoint('tinker.stepped');
    }
    const before = this.#held();
    await this.#anchor(model);
    const tensor = strangeTensor(this.#held().adapter.get('adapter_model.safetensors')!);
    if (tensor !== null) {
      this.#at = before;
      return refuse(`${tensor} holds numbers that are none`);
    }
    const restores = this.#restores;
    this.#restores = 0;
    const more = restores === 0 ? {} : { engine_restores: restores };
    return { applied: true, metrics: { ...metrics, ...more }, digest: this.#held().version.digest, logprobs };
  }

  /** The model may have moved; the version has not. */
  #refused(reason: string, metrics: Readonly<Record<string, number>>, digest: string): TrainOutcome {
    this.#discard();
    const finite = Object.fromEntries(Object.entries(metrics).filter(([, value]) => Number.isFinite(value)));
    return { applied: false, reason, metrics: finite, digest };
  }

  /** Logprobs under the reference of a KL penalty, which stays in a model of its own. */
  async #referenceScores(folder: string | undefined, batch: Rows<TrainSample>): Promise<Float32Array[]> {
    assert(folder !== undefined, 'a KL penalty comes with its reference');
    const { digest, ...version } = await readVersion(folder);
    if (this.#reference?.digest !== digest) {
      await this.#forgetReference();
      const { baseModel, rank, seed, trainingPath } = version;
      this.#reference = {
        digest,
        model: this.#loaded({ baseModel, rank, seed, from: trainingPath, optimizer: false }),
      };
    }
    return tokenLogprobs(await this.#reference.model, batch);
  }

  async #forgetReference(): Promise<void> {
    const model = this.#reference?.model;
    this.#reference = null;
    await (await model?.catch(() => null))?.unload();
  }

  /** Makes the model's state a version: two checkpoints there, and the adapter here. */
  async #anchor(
    model: TinkerModel,
    begun: Pick<TinkerVersion, 'baseModel' | 'rank' | 'seed' | 'endTokenIds'> & Pick<VersionFolder, 'texts'> = {
      ...this.#held().version,
      texts: this.#held().texts,
    },
  ): Promise<void> {
    const { baseModel, rank, seed, endTokenIds, texts } = begun;
    const { url, checkpointTtlS } = this.#spec;
    const name = `ratchet-${randomUUID()}`;
    const [trainingPath, samplerPath] = await Promise.all([
      model.saveWeights(name, checkpointTtlS),
      model.saveForSampler(name, checkpointTtlS),
    ]);
    await failpoint('tinker.saved');
    const adapter = asPeft(await downloadAdapter(this.#client, model, samplerPath));
    const digest = adapterDigest(adapter.get('adapter_model.safetensors')!);
    const format = 'ratchet-tinker-1';
    const version = {
      format,
      url,
      baseModel,
      rank,
      seed,
      modelId: model.id,
      trainingPath,
      samplerPath,
      digest,
      endTokenIds,
    } as const;
    this.#at = { version, adapter, texts };
    this.#withOptimizer = true;
    this.#hasMoved = false;
    if (this.#spec.server === 'skyrl') await this.#leaveToSampling(model);
  }

  async #leaveToSampling(model: TinkerModel): Promise<void> {
    this.#served = [...this.#served, model];
    for (const old of this.#served.splice(0, this.#served.length - servedModelsMax)) await old.unload();
    this.#model = this.#load();
    this.#model.catch(() => undefined); // the next caller gets the rejection
  }

  #ready(): Promise<TinkerModel> {
    return (this.#model ??= this.#load());
  }

  #load(): Promise<TinkerModel> {
    const { baseModel, rank, seed, trainingPath } = this.#held().version;
    return this.#loaded({ baseModel, rank, seed, from: trainingPath, optimizer: this.#withOptimizer });
  }

  #loaded(wish: {
    baseModel: string;
    rank: number;
    seed: number;
    from: string | null;
    optimizer: boolean;
  }): Promise<TinkerModel> {
    const layers = adaptersOf(this.#part!).targetModules;
    const has = (...names: string[]): boolean => names.some((name) => layers.includes(name));
    const trained = {
      attention: has('q_proj', 'k_proj', 'v_proj', 'o_proj'),
      mlp: has('up_proj', 'down_proj', 'gate_proj'),
      unembedding: false,
    };
    return loadModel(this.#client, { ...wish, trained }, this.#say);
  }

  /** Drops the model; the next one is loaded from the held version. */
  #discard(): void {
    const model = this.#model;
    this.#model = null;
    const isSampled = (id: string): boolean => this.#served.some((served) => served.id === id);
    void model?.then((found) => (isSampled(found.id) ? undefined : found.unload())).catch(() => undefined);
  }

  /** Unloads all models but the one with this id, which is sampled from. */
  async #unloadAll(kept?: string): Promise<void> {
    const models = [...this.#served, await this.#model?.catch(() => null)];
    this.#served = this.#served.filter(({ id }) => id === kept);
    [this.#model, this.#at] = [null, null];
    for (const model of models) if (model && model.id !== kept) await model.unload();
  }

  #held(): VersionFolder {
    assert(this.#at, 'open() or makeBase() comes first');
    return this.#at;
  }

  async #translated<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw trainerError(error);
    }
  }
}

function adaptersOf({ lora }: TrainedPart): NonNullable<TrainedPart['lora']> {
  if (lora) return lora;
  throw new RatchetError('Unsupported', 'A Tinker server trains adapters: expected [lora], got none.');
}

/** Refuses plans that `ratchet check` refuses; no loss is replaced by another. */
function requireKnown({ loss, temperature }: StepPlan): void {
  if (temperature !== 1)
    throw new RatchetError(
      'Unsupported',
      `A Tinker server trains at temperature 1; got ${temperature}. docs/guide/tinker.md says why.`,
    );
  if (loss.type === 'cross_entropy' && !isTinkerLoss(loss, 0))
    throw new RatchetError('Unsupported', 'The loss "cross_entropy" has no teacher beside it.');
}

function adam({ beta1, beta2, epsilon, weightDecay, maxGradNorm }: OptimizerSpec, learningRate: number) {
  return {
    learning_rate: learningRate,
    beta1,
    beta2,
    eps: epsilon,
    weight_decay: weightDecay,
    grad_clip_norm: maxGradNorm,
  };
}

/** SkyRL reports the gradient's norm before clipping. */
function stepMetrics(told: Readonly<Record<string, number>>): Record<string, number> {
  const norm = Object.entries(told).find(([name]) => /(?:^|\/)grad_norm/.test(name))?.[1];
  return Number.isFinite(norm) ? { grad_norm: norm! } : {};
}
