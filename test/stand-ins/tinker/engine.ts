import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import type { TrainSample } from '../../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../../config/run-spec.ts';
import { EngineOptimizer, type LoraConfig } from '../../../engine/index.ts';

/** A row of a request, in the API's words. */
export const Datum = z.object({
  model_input: z.object({ chunks: z.array(z.object({ tokens: z.array(z.int()) })) }),
  loss_fn_inputs: z.record(z.string(), z.object({ data: z.array(z.number()) })),
});
export type Datum = z.infer<typeof Datum>;

export interface LossRequest {
  readonly data: readonly Datum[];
  readonly loss_fn: string;
  readonly loss_fn_config?: Readonly<Record<string, number>> | null | undefined;
}

export interface AdamWish {
  readonly learning_rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weight_decay: number;
}

/** How a server adds losses up, and over what. SkyRL's JAX backend takes means of sequences; most others add up. */
export interface Adding {
  readonly by: 'sum' | 'row_mean' | 'token_mean' | 'sequence_mean' | 'all_tokens';
  readonly over: 'step' | 'request';
}

interface SlotWish {
  /** 0 = all weights. */
  readonly rank: number;
  readonly seed: number;
  readonly adding: Adding;
  /** Takes no notice of Adam's settings but the learning rate, as SkyRL's FSDP backend. */
  readonly ignoresAdam: boolean;
}

/** One adapter in one of the server's slots: the embedded engine's arithmetic behind the API's calls. */
export class SlotModel {
  readonly rank: number;
  readonly #trainer: EngineOptimizer;
  readonly #base: string;
  readonly #adding: Adding;
  readonly #ignoresAdam: boolean;
  #pending: LossRequest[] = [];
  /** The sampler's checkpoint that was put into it last. */
  loadedCheckpoint: string | null = null;
  /** Whether it was trained since. */
  hasMoved = false;

  private constructor(trainer: EngineOptimizer, base: string, { rank, adding, ignoresAdam }: SlotWish) {
    this.#trainer = trainer;
    this.#adding = adding;
    this.#ignoresAdam = ignoresAdam;
    this.#base = base;
    this.rank = rank;
  }

  /** `base` is a folder of Hugging Face files. */
  static async open(base: string, wish: SlotWish): Promise<SlotModel> {
    const { rank, seed } = wish;
    const lora: LoraConfig = { r: rank, alpha: 32, dropout: 0, targetModules: 'all-linear' };
    const options = { threads: 1, seed, ...(rank > 0 ? { lora } : {}) };
    return new SlotModel(await EngineOptimizer.open(base, options), base, wish);
  }

  /** Returns to the initial state, for the slot's next model. */
  async reset(): Promise<void> {
    this.#pending = [];
    this.loadedCheckpoint = null;
    this.hasMoved = false;
    await this.#trainer.loadWeights(this.#base);
    await this.#trainer.resetMoments();
  }

  async logprobs(data: readonly Datum[]): Promise<number[][]> {
    const rows = data.map((datum) => ({ tokenIds: tokensOf(datum), lossMask: [0, ...targetsOf(datum).map(() => 1)] }));
    const scored = await this.#trainer.forwardLogprobs(rows, { temperature: 1 });
    return scored.map((row) => Array.from(row.subarray(1)));
  }

  async forwardBackward(request: LossRequest): Promise<number[][]> {
    this.#pending.push(request);
    return this.logprobs(request.data);
  }

  /**
   * SkyRL's loss: the mean over sequences of Σ w ℓ / Σ w, over all requests since the last step. What is asked for twice is done
   * twice: without a gradient of its own, from Adam's momentum.
   */
  async optimStep(adam: AdamWish): Promise<{ readonly gradNorm: number }> {
    const requests = this.#pending;
    this.#pending = [];
    this.hasMoved = true;
    const given = { beta1: adam.beta1, beta2: adam.beta2, epsilon: adam.eps, weightDecay: adam.weight_decay };
    const own = { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weightDecay: 0.01 };
    const optimizer = { ...(this.#ignoresAdam ? own : given), maxGradNorm: 1e30 }; // no notice of grad_clip_norm
    const options = { learningRate: adam.learning_rate, optimizer, temperature: 1, klBeta: 0 };
    const first = requests[0];
    const samples = this.#samplesOf(requests);
    const isFlat = samples.every(({ advantages, lossMask }) =>
      advantages.every((a, t) => a === 0 || lossMask[t] === 0),
    );
    if (!first || isFlat) {
      // A gradient of nearly nothing: the step that momentum alone makes.
      const nothing: TrainSample = {
        tokenIds: [0, 0],
        lossMask: [0, 1],
        behaviorLogprobs: [0, -80],
        advantages: [0, 1e-12],
      };
      await this.#trainer.trainStep([nothing, nothing], {
        ...options,
        loss: { type: 'cispo', clipHigh: 1, aggregation: 'sequence' },
      });
      return { gradNorm: 0 };
    }
    const sum = { aggregation: 'dr_grpo', maxTokens: 1 / samples.length } as const; // divided by rows · maxTokens = 1
    const isMean = this.#adding.by === 'sequence_mean' && this.#adding.over === 'step';
    const loss = { ...lossOf(first), ...(isMean ? {} : sum) };
    const result = await this.#trainer.trainStep(samples, { ...options, loss });
    return { gradNorm: result.metrics.gradNorm };
  }

  /** Rows whose plain sum is what the server makes of them; the means of sequences are the engine's own. */
  #samplesOf(requests: readonly LossRequest[]): TrainSample[] {
    const { by, over } = this.#adding;
    const isLinear = by === 'sum' || by === 'row_mean' || by === 'all_tokens';
    const toSample = isLinear ? summedSampleOf : sampleOf;
    const inRequests = requests.map((request) => request.data.map((datum) => toSample(datum, request)));
    if (by === 'sum' || (by === 'sequence_mean' && over === 'step')) return inRequests.flat();
    const scopes = over === 'step' ? [inRequests.flat()] : inRequests;
    return scopes.flatMap((rows) => {
      const weight = (row: TrainSample): number => row.lossMask.reduce((sum, w) => sum + w, 0);
      const all = rows.reduce((sum, row) => sum + (by === 'all_tokens' ? row.tokenIds.length - 1 : weight(row)), 0);
      return rows.map((row) => {
        const divisor = by === 'row_mean' ? rows.length : by === 'sequence_mean' ? rows.length * weight(row) : all;
        return { ...row, advantages: row.advantages.map((advantage) => advantage / divisor) };
      });
    });
  }

  /** Weights and optimizer. */
  async save(folder: string): Promise<void> {
    await mkdir(folder, { recursive: true });
    await this.#trainer.exportWeights(folder, { base: this.#base });
    await writeFile(path.join(folder, 'optimizer.state'), await this.#trainer.saveState());
  }

  /** Gives the digest of what is sampled from there. */
  async saveForSampler(folder: string): Promise<string> {
    await mkdir(folder, { recursive: true });
    return this.#trainer.exportWeights(folder, { base: this.#base });
  }

  async load(folder: string, withMoments: boolean): Promise<void> {
    await this.#trainer.loadWeights(folder);
    if (!withMoments) await this.#trainer.resetMoments();
    else await this.#trainer.restoreState(await readFile(path.join(folder, 'optimizer.state')));
  }

  /** Effect of sampling on a slot: the checkpoint replaces whatever was in training there. */
  async loadForSampling(folder: string, name: string): Promise<void> {
    this.loadedCheckpoint = name;
    this.hasMoved = false;
    await this.#trainer.loadWeights(folder);
  }

  async digest(): Promise<string> {
    return this.#trainer.digest();
  }

  async close(): Promise<void> {
    await this.#trainer.close();
  }
}

function tokensOf(datum: Datum): number[] {
  const inputs = datum.model_input.chunks.flatMap(({ tokens }) => tokens);
  return [...inputs, targetsOf(datum).at(-1)!];
}

function targetsOf({ loss_fn_inputs: inputs }: Datum): number[] {
  return inputs['target_tokens']!.data;
}

function sampleOf(datum: Datum, { loss_fn, loss_fn_config: config }: LossRequest): TrainSample {
  const { loss_fn_inputs: inputs } = datum;
  const targets = targetsOf(datum);
  const given = (name: string, usual: number): number[] => inputs[name]?.data ?? targets.map(() => usual);
  const isSupervised = loss_fn === 'cross_entropy';
  // cispo between equal bounds has one ratio, whatever the logprobs are.
  const isFixed = config != null && config['clip_low_threshold'] === config['clip_high_threshold'];
  return {
    tokenIds: tokensOf(datum),
    lossMask: [0, ...given('weights', 1)],
    // If the ratio is cut to 1, cispo is cross-entropy.
    behaviorLogprobs: [0, ...(isSupervised || isFixed ? targets.map(() => -80) : given('logprobs', 0))],
    advantages: [0, ...(isSupervised ? targets.map(() => 1) : given('advantages', 0))],
  };
}

/** When losses add up, weights may have any sign and multiply ℓ; there are none beside advantages. */
function summedSampleOf(datum: Datum, request: LossRequest): TrainSample {
  const sample = sampleOf(datum, request);
  if (request.loss_fn !== 'cross_entropy') return sample;
  const weights = sample.lossMask.slice(1);
  return { ...sample, lossMask: [0, ...weights.map(() => 1)], advantages: [0, ...weights] };
}

function lossOf({ loss_fn, loss_fn_config: config }: LossRequest): LossSettings {
  const [low, high] = [config?.['clip_low_threshold'] ?? 0.8, config?.['clip_high_threshold'] ?? 1.2];
  const aggregation = 'sequence';
  if (loss_fn === 'cross_entropy') return { type: 'cispo', clipHigh: 1, aggregation };
  if (loss_fn === 'ppo') return { type: 'grpo', clipLow: low, clipHigh: high, aggregation };
  if (loss_fn === 'importance_sampling') return { type: 'importance_sampling', clipHigh: 1, aggregation };
  return { type: 'cispo', clipHigh: high, aggregation };
}
