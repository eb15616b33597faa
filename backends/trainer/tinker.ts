import assert from 'node:assert/strict';
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
import { readTextFiles } from '../../engine/index.ts';
import { failpoint } from '../../store/failpoints.ts';
import { supervisedBatch } from '../tinker/batch.ts';
import { BatchGradient, notFinite, runBatch, tokenLogprobs } from '../tinker/batch-gradient.ts';
import { type ClientOptions, isTrouble, TinkerClient, type TinkerModel, TinkerTrouble } from '../tinker/index.ts';
import { onlyModelOf, trainerError } from '../tinker/load-model.ts';
import { ModelRoom } from '../tinker/model-room.ts';
import { refusalOf, supervisedPassMetrics } from '../tinker/pass-metrics.ts';
import {
  adam,
  ignoredLines,
  layersOf,
  otherLossLines,
  requireKnown,
  serverLossOf,
  stepMetrics,
} from '../tinker/step-terms.ts';
import {
  endTokensIn,
  readVersion,
  type TinkerVersion,
  type VersionFolder,
  writeVersion,
} from '../tinker/version-files.ts';
import { VersionStage } from '../tinker/version-stage.ts';
import type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** Attempts of a step, from the version before it, after the server lost the model. */
const stepAttemptsMax = 3;

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
 * Trains on a server of the Tinker API. The server's state is a cache: a version *is* its weights, which are downloaded
 * after every step, and training resumes from the server's own checkpoint of it. So a step uses a model that is at the
 * version before. If anything happens to that model, another one is loaded and the whole step repeated; an optim_step is
 * never sent alone, nor twice. Which model that is, and whether it is trained on after a step, is `ModelRoom`'s affair.
 */
export class TinkerTrainer implements Trainer {
  readonly #spec: TinkerTrainerSpec;
  readonly #say: (line: string) => void;
  readonly #client: TinkerClient;
  readonly #room: ModelRoom;
  readonly #stage: VersionStage;
  /** The version in the model. */
  #at: VersionFolder | null = null;
  #part: TrainedPart | null = null;
  /** Whether supervised steps followed that version. */
  #hasMoved = false;
  /** Models that were loaded because another one was lost. */
  #restores = 0;
  /** Whether the settings were named that the server takes no notice of. */
  #hasSaidIgnored = false;
  readonly #gradients = new BatchGradient();

  constructor(spec: TinkerTrainerSpec, options: ClientOptions = {}) {
    this.#spec = spec;
    this.#say = options.say ?? (() => undefined);
    this.#client = new TinkerClient(spec, options);
    this.#room = new ModelRoom(this.#client, this.#say);
    this.#stage = new VersionStage(this.#client, spec);
  }

  async makeBase(
    folder: string,
    options: TrainedPart & { files: Readonly<Record<string, string>> },
  ): Promise<{ digest: string }> {
    const { files: texts, ...part } = options;
    const rank = rankOf(part);
    return this.#translated(async () => {
      const baseModel = this.#spec.baseModel ?? (await onlyModelOf(this.#client));
      await this.#room.empty();
      this.#begin(part);
      const begun = { baseModel, rank, seed: part.seed, endTokenIds: endTokensIn(texts) };
      await this.#know({ ...begun, server: undefined });
      const model = await this.#room.begin(begun);
      await this.#anchor(model, { ...begun, texts });
      await writeVersion(folder, this.#held());
      return { digest: this.#held().version.digest };
    });
  }

  async open(folder: string, part: TrainedPart): Promise<{ digest: string }> {
    const rank = rankOf(part);
    const version = await readVersion(folder);
    if (version.rank !== rank) {
      throw new RatchetError(
        'ModelUnsupported',
        `${folder} holds ${partName(version.rank)}; the run trains ${partName(rank)} ([lora] r).`,
      );
    }
    const texts = await readTextFiles(folder);
    const { weights, digest } = await this.#stage.take(folder);
    await this.#room.empty(version.modelId);
    this.#begin(part);
    this.#at = { version: { ...version, digest }, weights, texts };
    this.#room.point(this.#at.version, { optimizer: false });
    return { digest };
  }

  waitsFor(): string | null {
    return this.#client.http.waits.longest;
  }

  /** The only model of a server is for whoever trains next: it is loaded again from its checkpoint. */
  rest(): void {
    if (this.#room.facts?.models === 'one' && this.#at !== null && !this.#hasMoved) this.#room.discard();
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
          this.#room.discard();
          void this.#room.forgetReference().catch(() => undefined); // as lost as the other one may be
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
      const model = await this.#ready(optimizer);
      const interruptions = this.#client.http.interruptions;
      const batch = supervisedBatch(rowsOf(samples).rows, this.#gradients.server);
      const logprobs = await runBatch(model, batch, samples);
      if (logprobs === null) return { applied: false, reason: notFinite, metrics: {} };
      const metrics = await supervisedPassMetrics(samples, logprobs);
      const reason = refusalOf(metrics);
      if (reason !== null) return { applied: false, reason, metrics };
      this.#hasMoved = true;
      const told = await this.#optimStep(model, adam(optimizer, learningRate), interruptions);
      return { applied: true, metrics: { ...metrics, ...stepMetrics(told) } };
    });
  }

  async digest(): Promise<string> {
    await this.#translated(async () => {
      if (this.#hasMoved) await this.#anchor(await this.#ready());
    });
    return this.#held().version.digest;
  }

  /** An adapter names its base by the server's name; `base`, a folder of ours, has no weights of it. */
  async exportTo(folder: string): Promise<void> {
    await this.digest();
    await writeVersion(folder, this.#held());
  }

  async logprobs(samples: readonly PackedRow[], temperature: number): Promise<readonly Float32Array[]> {
    assert.equal(temperature, 1, 'these servers train at temperature 1');
    return this.#translated(async () => tokenLogprobs(this.#room.sampled ?? (await this.#ready()), samples));
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
        `The optimizer’s state is of the weights ${document.digest.slice(0, 12)}…, the version’s are ${version.digest.slice(0, 12)}….`,
      );
    }
    if (document) this.#at = { ...this.#held(), version: { ...version, trainingPath: document.trainingPath } };
    this.#room.discard();
    this.#room.point(this.#held().version, { optimizer: document !== null });
    // Done now, so that a missing checkpoint is found while an older one can still be resumed from.
    await this.#translated(async () => this.#ready());
  }

  /** The last version's model stays while the server keeps it: evaluations may continue without a trainer. */
  async close(): Promise<void> {
    await this.#room.forgetReference();
    await this.#gradients.close();
    await this.#room.empty(this.#at?.version.modelId);
    this.#at = null;
    await this.#stage.clear();
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
    const model = await this.#ready(optimizer);
    const referenceLogprobs = klBeta > 0 ? await this.#referenceScores(referenceFolder, batch) : undefined;
    const interruptions = this.#client.http.interruptions;
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
      if (number < parts.length) for (const row of computed.logprobs ?? []) logprobs.push(row);
      const refused = computed.refused ?? refusalOf(metrics);
      if (refused !== null) return refuse(refused);
      await failpoint('tinker.gradients');
      metrics = { ...metrics, ...stepMetrics(await this.#optimStep(model, adam(optimizer, learningRate), interruptions)) }; // prettier-ignore
      const strange = refusalOf(metrics);
      if (strange !== null) return refuse(strange);
      await failpoint('tinker.stepped');
    }
    const before = this.#held();
    const tensor = await this.#anchor(model);
    if (tensor !== null) {
      this.#at = before;
      this.#room.point(before.version, { optimizer: true });
      return refuse(`${tensor} holds numbers that are none`);
    }
    const restores = this.#restores;
    this.#restores = 0;
    const more = restores === 0 ? {} : { engine_restores: restores };
    return { applied: true, metrics: { ...metrics, ...more }, digest: this.#held().version.digest, logprobs };
  }

  /**
   * A server that restores its models when it is started again would apply a step to the gradients that are left of it:
   * none, or those of its last requests. So no step goes over a time in which the server was away.
   */
  async #optimStep(
    model: TinkerModel,
    params: ReturnType<typeof adam>,
    interruptions: number,
  ): Promise<Readonly<Record<string, number>>> {
    const requireSteady = (): void => {
      if (this.#client.isHosted || this.#client.http.interruptions === interruptions) return;
      throw new TinkerTrouble('lost', `The Tinker server at ${this.#spec.url} was away in the middle of a step: its model may have lost gradients`); // prettier-ignore
    };
    requireSteady();
    const told = await model.optimStep(params);
    requireSteady();
    return told;
  }

  /** The model may have moved; the version has not. */
  #refused(reason: string, metrics: Readonly<Record<string, number>>, digest: string): TrainOutcome {
    this.#room.discard();
    const finite = Object.fromEntries(Object.entries(metrics).filter(([, value]) => Number.isFinite(value)));
    return { applied: false, reason, metrics: finite, digest };
  }

  /** Logprobs under the reference of a KL penalty, which stays in a model of its own. */
  async #referenceScores(folder: string | undefined, batch: Rows<TrainSample>): Promise<Float32Array[]> {
    assert(folder !== undefined, 'a KL penalty comes with its reference');
    return tokenLogprobs(await this.#room.reference(await readVersion(folder)), batch);
  }

  /** Makes the model's state a version: two checkpoints there, and the weights here. Names a tensor that is no number. */
  async #anchor(
    model: TinkerModel,
    begun: Pick<TinkerVersion, 'baseModel' | 'rank' | 'seed' | 'endTokenIds'> & Pick<VersionFolder, 'texts'> = {
      ...this.#held().version,
      texts: this.#held().texts,
    },
  ): Promise<string | null> {
    const { texts, ...of } = begun;
    const saved = await this.#room.save(model, this.#at?.version.trainingPath ?? null, this.#spec.checkpointTtlS);
    await failpoint('tinker.saved');
    const { weights, digest, strange, alpha } = await this.#stage.download(model, saved.samplerPath);
    if (alpha !== null && alpha !== this.#part?.lora?.alpha)
      this.#sayOnce(`the server's adapters have lora_alpha = ${alpha}, where [lora] alpha is ${this.#part?.lora?.alpha ?? 'missing'}: its own is used, and stands in adapter_config.json`); // prettier-ignore
    const { baseModel, rank, seed, endTokenIds } = of;
    const version: TinkerVersion = {
      format: 'ratchet-tinker-1',
      url: this.#spec.url,
      baseModel,
      rank,
      seed,
      modelId: model.id,
      ...saved,
      digest,
      endTokenIds,
      ...(this.#room.facts && { server: this.#room.facts }),
    };
    this.#at = { version, weights, texts };
    this.#hasMoved = false;
    this.#room.anchored(model, version);
    return strange;
  }

  readonly #said = new Set<string>();

  #sayOnce(line: string): void {
    if (!this.#said.has(line)) this.#say(line);
    this.#said.add(line);
  }

  #begin(part: TrainedPart): void {
    this.#part = part;
    this.#hasMoved = false;
    this.#at = null;
    this.#room.layers = layersOf(part);
  }

  /** What the server does is measured once, and then stands in every version. */
  async #know(version: Pick<TinkerVersion, 'baseModel' | 'rank' | 'seed' | 'server'>): Promise<void> {
    const facts = await this.#room.know(version);
    this.#gradients.losses = facts?.losses ?? null;
    for (const line of otherLossLines(facts, this.#spec.url)) this.#sayOnce(line);
    this.#gradients.server = serverLossOf(facts, this.#spec, (line) => this.#sayOnce(line));
  }

  async #ready(optimizer?: OptimizerSpec): Promise<TinkerModel> {
    await this.#know(this.#held().version);
    if (optimizer) this.#sayIgnored(optimizer);
    return this.#room.ready();
  }

  #sayIgnored(optimizer: OptimizerSpec): void {
    if (this.#hasSaidIgnored) return;
    this.#hasSaidIgnored = true;
    for (const line of ignoredLines(this.#room.facts, optimizer, this.#spec.url)) this.#say(line);
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

function rankOf({ lora }: TrainedPart): number {
  return lora?.r ?? 0;
}

function partName(rank: number): string {
  return rank === 0 ? 'all weights' : `an adapter of rank ${rank}`;
}
