import assert from 'node:assert/strict';
import type { InferenceSession, Tensor } from '../onnx/runtime.ts';
import { RatchetError } from '../../core/errors.ts';
import type { TrainBatch } from '../../core/rl/batch.ts';
import { trainPositionsMax } from '../limits.ts';
import { requireMemory } from '../model/memory.ts';
import { loadParameters, type ModelFolder, saveModelFolder } from '../model/model-folder.ts';
import { Parameters } from '../model/parameters.ts';
import { openModel } from '../model/presets.ts';
import { floats, floatScalar, ints, longs, openSession, type SessionOptions } from '../onnx/session.ts';
import { AdamW, globalNorm } from './adamw.ts';
import {
  gather,
  maskTotal,
  type MaskedSample,
  type MicroBatch,
  packRows,
  requireAligned,
  requireTrainable,
} from './pack.ts';
import { buildTrainGraph, gradientName, graphMetrics, type TrainGraphKind } from './train-graph.ts';
import type { ScoreOptions, SftMetrics, SftOptions, StepResult, Trainer, TrainMetrics, TrainOptions } from './types.ts';

export interface TrainerOptions extends SessionOptions {
  /** For a preset's random weights. */
  readonly seed?: number;
}

/** Weights, gradient, gradient of a micro-batch and two moments. */
export const copiesInTraining = 5;

type GradientKind = Exclude<TrainGraphKind, 'score'>;
type Sums = Record<string, number>;

/** Trains one model in this process. One call at a time: a second one waits for the first. */
export class EngineTrainer implements Trainer {
  readonly #model: ModelFolder;
  readonly #options: TrainerOptions;
  readonly #optimizer: AdamW;
  readonly #gradient: Parameters;
  readonly #microGradient: Parameters;
  readonly #sessions = new Map<TrainGraphKind, Promise<InferenceSession>>();
  #reference: { folder: string; parameters: Parameters } | null = null;
  #tail: Promise<unknown> = Promise.resolve();

  private constructor(model: ModelFolder, options: TrainerOptions) {
    this.#model = model;
    this.#options = options;
    this.#optimizer = new AdamW(model.parameters.flat.length);
    this.#gradient = new Parameters(model.config);
    this.#microGradient = new Parameters(model.config);
  }

  /** `model` is a folder of Hugging Face files or a preset's name. */
  static async open(model: string, options: TrainerOptions): Promise<EngineTrainer> {
    const opened = await openModel(model, { seed: options.seed ?? 0 });
    requireMemory(opened.parameters.flat.length, copiesInTraining, 'training it');
    return new EngineTrainer(opened, options);
  }

  /** Its parameters are the ones in training: every applied step changes them in place. */
  get model(): ModelFolder {
    return this.#model;
  }

  sftStep(samples: readonly MaskedSample[], options: SftOptions): Promise<StepResult<SftMetrics>> {
    return this.#inTurn(async () => {
      requireTrainable(samples, this.#model.config);
      const total = maskTotal(samples);
      const sums = await this.#accumulate('sft', samples, options, total, () => ({
        inverse_temperature: floatScalar(1),
      }));
      return this.#apply(sftMetrics(sums, total, globalNorm(this.#gradient.flat)), options);
    });
  }

  trainStep(batch: TrainBatch, options: TrainOptions): Promise<StepResult<TrainMetrics>> {
    return this.#inTurn(async () => {
      const { samples } = batch;
      requireTrainable(samples, this.#model.config);
      requirePolicyInputs(batch, options);
      const total = maskTotal(samples);
      const kind = options.referenceLogprobs ? 'cispo_kl' : 'cispo';
      const sums = await this.#accumulate(kind, samples, options, total, (micro) => policyFeeds(micro, batch, options));
      const base = sftMetrics(sums, total, globalNorm(this.#gradient.flat));
      return this.#apply(policyMetrics(base, sums, kind), options);
    });
  }

  forwardLogprobs(samples: readonly MaskedSample[], options: ScoreOptions): Promise<Float32Array[]> {
    return this.#inTurn(async () => {
      requireTrainable(samples, this.#model.config);
      const parameters = await this.#scoringParameters(options);
      const session = await this.#session('score');
      const results = samples.map((sample) => new Float32Array(sample.tokenIds.length));
      for (const micro of packRows(samples, trainPositionsMax)) {
        const feeds = { ...tokenFeeds(micro), inverse_temperature: floatScalar(1 / options.temperature) };
        const output = await session.run({ ...parameters.tensors, ...feeds });
        scatterLogprobs(micro, output['logprobs']?.data, results);
      }
      return results;
    });
  }

  digest(): Promise<string> {
    return this.#inTurn(async () => this.#model.parameters.digest());
  }

  exportWeights(folder: string): Promise<string> {
    return this.#inTurn(async () => {
      await saveModelFolder(this.#model, folder);
      return this.#model.parameters.digest();
    });
  }

  loadWeights(folder: string): Promise<string> {
    return this.#inTurn(async () => {
      this.#model.parameters.flat.set((await this.#load(folder)).flat);
      return this.#model.parameters.digest();
    });
  }

  saveState(): Promise<Uint8Array> {
    return this.#inTurn(async () => this.#optimizer.save());
  }

  restoreState(state: Uint8Array): Promise<void> {
    return this.#inTurn(async () => this.#optimizer.restore(state));
  }

  resetOptimizer(): Promise<void> {
    return this.#inTurn(async () => this.#optimizer.reset());
  }

  close(): Promise<void> {
    return this.#inTurn(async () => {
      for (const session of this.#sessions.values()) await (await session).release();
      this.#sessions.clear();
    });
  }

  /** The gradient of the last step's loss, by tensor name, before clipping: for tests and probes. */
  get gradient(): Parameters {
    return this.#gradient;
  }

  /** Sums the metrics and gradients of all micro-batches. */
  async #accumulate(
    kind: GradientKind,
    samples: readonly MaskedSample[],
    options: SftOptions,
    total: number,
    lossFeeds: (micro: MicroBatch) => Record<string, Tensor>,
  ): Promise<Sums> {
    const session = await this.#session(kind);
    const microBatches = packRows(samples, options.microBatchPositions ?? trainPositionsMax);
    const sums: Sums = {};
    this.#gradient.flat.fill(0);
    for (const micro of microBatches) {
      const feeds = {
        ...tokenFeeds(micro),
        mask: vectorTensor(micro, (row) => samples[row]!.lossMask),
        inverse_mask_total: floatScalar(1 / total),
        ...lossFeeds(micro),
      };
      const target = microBatches.length === 1 ? this.#gradient : this.#microGradient;
      addMetrics(sums, kind, await this.#runGradient(session, feeds, target));
      if (target === this.#microGradient) addInto(this.#gradient.flat, target.flat);
    }
    return sums;
  }

  async #runGradient(
    session: InferenceSession,
    feeds: Record<string, Tensor>,
    target: Parameters,
  ): Promise<Float32Array> {
    const fetches: Record<string, Tensor | null> = { metrics: null };
    for (const [name, tensor] of Object.entries(target.tensors)) fetches[gradientName(name)] = tensor;
    const output = await session.run({ ...this.#model.parameters.tensors, ...feeds }, fetches);
    const metrics = output['metrics']?.data;
    assert(metrics instanceof Float32Array, 'a train graph gives its metrics');
    return metrics;
  }

  #apply<Metrics extends SftMetrics>(metrics: Metrics, options: SftOptions): StepResult<Metrics> {
    const reason = refusal(metrics);
    if (reason !== null) return { applied: false, reason, metrics };
    this.#optimizer.apply(
      this.#model.parameters.flat,
      this.#gradient.flat,
      metrics.gradNorm,
      options.learningRate,
      options.optimizer,
    );
    return { applied: true, metrics };
  }

  async #scoringParameters({ weights }: ScoreOptions): Promise<Parameters> {
    if (weights === undefined) return this.#model.parameters;
    if (this.#reference?.folder !== weights) {
      this.#reference = { folder: weights, parameters: await this.#load(weights) };
    }
    return this.#reference.parameters;
  }

  async #load(folder: string): Promise<Parameters> {
    const loaded = await loadParameters(folder);
    if (layoutText(loaded) !== layoutText(this.#model.parameters)) {
      throw new RatchetError('ModelUnsupported', `${folder} holds another architecture than the model in training.`);
    }
    return loaded;
  }

  #session(kind: TrainGraphKind): Promise<InferenceSession> {
    const opened = this.#sessions.get(kind) ?? openSession(buildTrainGraph(this.#model.config, kind), this.#options);
    this.#sessions.set(kind, opened);
    return opened;
  }

  #inTurn<Result>(work: () => Promise<Result>): Promise<Result> {
    const turn = this.#tail.then(work);
    this.#tail = turn.catch(() => undefined);
    return turn;
  }
}

function tokenFeeds(micro: MicroBatch): Record<string, Tensor> {
  return {
    tokens: ints(micro.tokens, [micro.rows.length, micro.width]),
    selected: longs(micro.selected, [micro.selected.length]),
    targets: longs(micro.targets, [micro.targets.length]),
  };
}

function policyFeeds(micro: MicroBatch, { samples }: TrainBatch, options: TrainOptions): Record<string, Tensor> {
  const { referenceLogprobs } = options;
  return {
    inverse_temperature: floatScalar(1 / options.temperature),
    clip_high: floatScalar(options.loss.clipHigh),
    advantages: vectorTensor(micro, (row) => samples[row]!.advantages),
    behavior_logprobs: vectorTensor(micro, (row) => samples[row]!.behaviorLogprobs),
    ...(referenceLogprobs && {
      reference_logprobs: vectorTensor(micro, (row) => referenceLogprobs[row]!),
      beta: floatScalar(options.klBeta),
    }),
  };
}

function vectorTensor(micro: MicroBatch, perRow: (row: number) => ArrayLike<number>): Tensor {
  const values = gather(micro, perRow);
  return floats(values, [values.length]);
}

function requirePolicyInputs({ samples }: TrainBatch, { referenceLogprobs, klBeta, temperature }: TrainOptions): void {
  samples.forEach((sample, row) => {
    requireAligned(sample.behaviorLogprobs, sample, `behaviour logprobs in row ${row}`);
    requireAligned(sample.advantages, sample, `advantages in row ${row}`);
    if (referenceLogprobs) requireAligned(referenceLogprobs[row], sample, `reference logprobs in row ${row}`);
  });
  if (klBeta > 0 && !referenceLogprobs) {
    throw new RatchetError('Unsupported', `A KL term of ${klBeta} needs reference logprobs; none were given.`);
  }
  if (!(temperature > 0)) {
    throw new RatchetError('Unsupported', `Training needs the sampling temperature, a number > 0; got ${temperature}.`);
  }
}

function sftMetrics(sums: Sums, total: number, gradNorm: number): SftMetrics {
  return { loss: sums['loss'] ?? 0, entropy: mean(sums, 'entropy', total), gradNorm, tokenCount: total };
}

function policyMetrics(base: SftMetrics, sums: Sums, kind: 'cispo' | 'cispo_kl'): TrainMetrics {
  return {
    ...base,
    mismatchKl: mean(sums, 'mismatchKl', base.tokenCount),
    clipFraction: mean(sums, 'clipFraction', base.tokenCount),
    ratioMean: mean(sums, 'ratioMean', base.tokenCount),
    maxLogprobDifference: sums['maxLogprobDifference'] ?? 0,
    klDivergence: kind === 'cispo_kl' ? mean(sums, 'klDivergence', base.tokenCount) : null,
  };
}

function mean(sums: Sums, name: string, total: number): number {
  return total === 0 ? 0 : (sums[name] ?? 0) / total;
}

/** The loss is a mean already, a maximum stays one, everything else adds up. */
function addMetrics(sums: Sums, kind: GradientKind, values: Float32Array): void {
  graphMetrics[kind].forEach((name, i) => {
    const value = values[i]!;
    const sofar = sums[name] ?? 0;
    sums[name] = name === 'maxLogprobDifference' ? largerOrNaN(sofar, value) : sofar + value;
  });
}

function largerOrNaN(a: number, b: number): number {
  return Number.isNaN(a) || Number.isNaN(b) ? NaN : Math.max(a, b);
}

function refusal({ tokenCount, loss, gradNorm }: SftMetrics): string | null {
  if (tokenCount === 0) return 'no token of the batch carries loss';
  if (!Number.isFinite(loss)) return `the loss is ${loss}`;
  if (!Number.isFinite(gradNorm)) return `the gradient norm is ${gradNorm}`;
  return null;
}

function scatterLogprobs(micro: MicroBatch, data: unknown, results: readonly Float32Array[]): void {
  assert(data instanceof Float32Array, 'a score graph gives logprobs');
  for (let i = 0; i < data.length; i++) results[micro.sourceRow[i]!]![micro.sourcePosition[i]!] = data[i]!;
}

function addInto(total: Float32Array, part: Float32Array): void {
  for (let i = 0; i < total.length; i++) total[i] = total[i]! + part[i]!;
}

function layoutText(parameters: Parameters): string {
  return JSON.stringify(parameters.layout);
}
