import { RatchetError } from '../../core/errors.ts';
import type { TrainBatch } from '../../core/rl/batch.ts';
import type { LossSettings } from '../../core/spec/run-spec.ts';
import { requireMemory } from '../model/memory.ts';
import { loadParameters, type ModelFolder, saveModelFolder } from '../model/model-folder.ts';
import { Parameters } from '../model/parameters.ts';
import { openModel } from '../model/presets.ts';
import type { SessionOptions } from '../onnx/session.ts';
import { AdamW, globalNorm } from './adamw.ts';
import { policyFeeds, requirePolicyInputs, supervisedFeeds } from './feeds.ts';
import { type CustomLoss, GradientComputer, type Pass } from './gradient-computer.ts';
import { maskTotal, type MaskedSample, requireTrainable } from './pack.ts';
import { meanOfPasses, policyMetrics, refusal, type Sums, supervisedMetrics } from './step-metrics.ts';
import { loadCustomLoss } from './user-code.ts';
import type { ScoreOptions, SftMetrics, SftOptions, StepResult, Trainer, TrainMetrics, TrainOptions } from './types.ts';

export interface TrainerOptions extends SessionOptions {
  /** For a preset's random weights. */
  readonly seed?: number;
  /** Logits computed at once; trainLogitsMax when left out. */
  readonly logitsMax?: number;
}

/** Weights, gradient, gradient of a micro-batch and two moments. */
export const copiesInTraining = 5;
/** Several passes over a batch also keep weights and moments of the start, to go back to when a later one is refused. */
export const copiesForPasses = 3;

/** Trains one model in this process. One call at a time: a second one waits for the first. */
export class EngineTrainer implements Trainer {
  readonly #model: ModelFolder;
  readonly #optimizer: AdamW;
  readonly #gradient: Parameters;
  readonly #microGradient: Parameters;
  readonly #computer: GradientComputer;
  #reference: { folder: string; parameters: Parameters } | null = null;
  #tail: Promise<unknown> = Promise.resolve();

  private constructor(model: ModelFolder, options: TrainerOptions) {
    this.#model = model;
    this.#computer = new GradientComputer(model.config, options, options.logitsMax);
    this.#optimizer = new AdamW(model.parameters.flat.length);
    this.#gradient = new Parameters(model.config);
    this.#microGradient = new Parameters(model.config);
  }

  /** `model` is a folder of Hugging Face files or a preset's name. */
  static async open(model: string, options: TrainerOptions): Promise<EngineTrainer> {
    const opened = await openModel(model, { seed: options.seed ?? 0 });
    requireMemory(opened.parameters.flat.length, copiesInTraining, 'training it', { copiesHeld: 1 });
    return new EngineTrainer(opened, options);
  }

  /** Its parameters are the ones in training: every applied step changes them in place. */
  get model(): ModelFolder {
    return this.#model;
  }

  sftStep(samples: readonly MaskedSample[], options: SftOptions): Promise<StepResult<SftMetrics>> {
    return this.#inTurn(async () => {
      requireTrainable(samples, this.#model.config);
      const sums = await this.#accumulate({ kind: 'sft', samples, lossFeeds: supervisedFeeds(samples) }, options);
      const metrics = supervisedMetrics(sums, maskTotal(samples), globalNorm(this.#gradient.flat));
      const reason = refusal(metrics);
      if (reason !== null) return { applied: false, reason, metrics };
      this.#apply(metrics.gradNorm, options);
      return { applied: true, metrics };
    });
  }

  trainStep(batch: TrainBatch, options: TrainOptions): Promise<StepResult<TrainMetrics>> {
    return this.#inTurn(async () => {
      requireTrainable(batch.samples, this.#model.config);
      requirePolicyInputs(batch, options);
      const { iterations = 1 } = options;
      const parameterCount = this.#model.parameters.flat.length;
      if (iterations === 1) return this.#trainPass(batch, options);
      requireMemory(parameterCount, copiesInTraining + copiesForPasses, `training it in ${iterations} passes`, {
        copiesHeld: copiesInTraining,
      });
      const before = { weights: this.#model.parameters.flat.slice(), optimizer: this.#optimizer.save() };
      const passes: TrainMetrics[] = [];
      for (let pass = 1; pass <= iterations; pass++) {
        const result = await this.#trainPass(batch, options);
        passes.push(result.metrics);
        if (result.applied) continue;
        this.#model.parameters.flat.set(before.weights);
        this.#optimizer.restore(before.optimizer);
        return { ...result, reason: `${result.reason}, in pass ${pass} of ${iterations}` };
      }
      return { applied: true, metrics: meanOfPasses(passes) };
    });
  }

  forwardLogprobs(samples: readonly MaskedSample[], options: ScoreOptions): Promise<Float32Array[]> {
    return this.#inTurn(async () => {
      requireTrainable(samples, this.#model.config);
      return this.#computer.score(samples, await this.#scoringParameters(options), options.temperature);
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
      await this.#computer.close();
    });
  }

  /** The gradient of the last step's loss, by tensor name, before clipping: for tests and probes. */
  get gradient(): Parameters {
    return this.#gradient;
  }

  async #trainPass(batch: TrainBatch, options: TrainOptions): Promise<StepResult<TrainMetrics>> {
    const { samples } = batch;
    const { loss, referenceLogprobs } = options;
    const kind = referenceLogprobs ? (`${loss.type}_kl` as const) : loss.type;
    const custom = loss.type === 'custom' ? { customLoss: await customLossOf(loss) } : {};
    const pass = { kind, samples, lossFeeds: policyFeeds(batch, options), ...custom };
    const sums = await this.#accumulate(pass, options);
    const metrics = policyMetrics(sums, maskTotal(samples), globalNorm(this.#gradient.flat));
    const reason = refusal(metrics);
    if (reason !== null) return { applied: false, reason, metrics };
    this.#apply(metrics.gradNorm, options);
    return { applied: true, metrics };
  }

  #accumulate(pass: Pass, options: SftOptions): Promise<Sums> {
    const { microBatchPositions, microBatchRows } = options;
    const limits = {
      ...(microBatchPositions === undefined ? {} : { microBatchPositions }),
      ...(microBatchRows === undefined ? {} : { microBatchRows }),
    };
    const { parameters } = this.#model;
    return this.#computer.accumulate({ ...pass, ...limits }, parameters, this.#gradient, this.#microGradient);
  }

  #apply(gradNorm: number, { learningRate, optimizer }: SftOptions): void {
    this.#optimizer.apply(this.#model.parameters.flat, this.#gradient.flat, gradNorm, learningRate, optimizer);
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

  #inTurn<Result>(work: () => Promise<Result>): Promise<Result> {
    const turn = this.#tail.then(work);
    this.#tail = turn.catch(() => undefined);
    return turn;
  }
}

function customLossOf({ import: code }: LossSettings): Promise<CustomLoss> {
  if (code) return loadCustomLoss(code);
  throw new RatchetError('Unsupported', 'A custom loss needs its file: expected loss.import, got none.');
}

function layoutText(parameters: Parameters): string {
  return JSON.stringify(parameters.layout);
}
