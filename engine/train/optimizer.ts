import { present } from '../../core/present.ts';
import {
  type MaskedSample,
  miniBatches,
  type Rows,
  type RowSource,
  rowsOf,
  scoredRows,
  type TokenScores,
  type TrainSample,
} from '../../core/rl/learning/batch.ts';
import type { LoraConfig } from '../model/adapter-layout.ts';
import type { AdapterParameters } from '../model/lora.ts';
import { copiesForPasses, copiesInTraining, requireMemory } from '../model/memory.ts';
import type { ModelFolder } from '../model/model-folder.ts';
import type { FlatTensors } from '../model/parameters.ts';
import type { SessionOptions } from '../onnx/session.ts';
import { requirePolicyInputs, rowDifferences, supervisedFeeds } from './feeds.ts';
import { GradientComputer, type Pass } from './gradient-computer.ts';
import { lossTraits } from '../../core/rl/losses.ts';
import { maskTotal, requireTrainable } from './micro-batches.ts';
import { type LearnedRow, type PartOfLoss, partsOfLoss } from './parts-of-loss.ts';
import { isFlat, meanOfPasses, metricsOfParts, refusalReason, type Sums, supervisedMetrics } from './step-metrics.ts';
import { TrainedPolicy } from './trained-policy.ts';
import { WeightUpdates } from './updates/index.ts';
import { customLossOf } from './custom-loss.ts';
import type {
  ExportOptions,
  LogprobOptions,
  SftMetrics,
  SftOptions,
  StepResult,
  SupervisedOptions,
  SupervisedSample,
  Optimizer,
  TrainMetrics,
  TrainOptions,
  TrainResult,
} from './types.ts';

export interface OptimizerOptions extends SessionOptions {
  /** Seed of a preset's random weights. */
  readonly seed?: number;
  /**
   * Trains adapters on the weights instead of the weights. null = never; by default as in the folder: an adapter's
   * folder is trained further with its own settings.
   */
  readonly lora?: LoraConfig | null;
  /** Logits computed at once; trainLogitsMax when left out. */
  readonly logitsMax?: number;
  /** Activations of every so many-th layer are recomputed for the gradient instead of kept. */
  readonly recomputesEvery?: number;
  /** Sessions receive frozen weights once, and keep a copy: on by default for a GPU. */
  readonly keepFrozen?: boolean;
}

/** Trains one model in this process. One call at a time: a second one waits for the first. */
export class EngineOptimizer implements Optimizer {
  readonly #policy: TrainedPolicy;
  readonly #optimizer: WeightUpdates;
  readonly #gradient: FlatTensors;
  readonly #microGradient: FlatTensors;
  readonly #computer: GradientComputer;
  #tail: Promise<unknown> = Promise.resolve();

  private constructor(policy: TrainedPolicy, options: OptimizerOptions) {
    this.#policy = policy;
    const { provider = 'cpu', keepFrozen = provider !== 'cpu' } = options;
    const frozen = keepFrozen && policy.adapter ? policy.parameters : null;
    this.#computer = new GradientComputer(policy.model.config, { ...options, frozen });
    this.#optimizer = new WeightUpdates(policy.trained.layout, options);
    this.#gradient = policy.gradientLike();
    this.#microGradient = policy.gradientLike();
  }

  /** `model` is a folder of Hugging Face files, of a PEFT adapter, or a preset's name. */
  static async open(model: string, options: OptimizerOptions): Promise<EngineOptimizer> {
    const { seed = 0, lora } = options;
    const policy = await TrainedPolicy.open(model, { seed, ...present({ lora }) });
    requireRoom(policy, { copies: copiesInTraining, copiesHeld: 1 }, 'training it');
    return new EngineOptimizer(policy, options);
  }

  /**
   * Its parameters are in training, and every applied step changes them in place; with an adapter they are its base and
   * stay.
   */
  get model(): ModelFolder {
    return this.#policy.model;
  }

  /** The adapter in training, changed in place; null if all weights are trained. */
  get adapter(): AdapterParameters | null {
    return this.#policy.adapter;
  }

  sftStep(given: Rows<SupervisedSample>, options: SupervisedOptions): Promise<StepResult<SftMetrics>> {
    return this.#inTurn(async () => {
      const rows = rowsOf(given);
      requireTrainable(given, this.#policy.model.config);
      const pass = {
        kind: 'sft' as const,
        rows,
        lossFeeds: supervisedFeeds(rows.rows, { normalizer: options.normalizer }),
      };
      const [sums] = await this.#accumulate([pass], options, 1);
      const metrics = supervisedMetrics(
        sums!,
        maskTotal(rows.rows),
        await this.#optimizer.globalNorm(this.#gradient.flat),
      );
      const reason = refusalReason(metrics);
      if (reason !== null) return { applied: false, reason, metrics };
      await this.#apply(metrics.gradNorm, options);
      return { applied: true, metrics };
    });
  }

  trainStep(given: Rows<TrainSample>, options: TrainOptions): Promise<TrainResult> {
    return this.#inTurn(async () => {
      const batch = rowsOf(given);
      requireTrainable(given, this.#policy.model.config);
      requirePolicyInputs(given, options);
      if (options.tellsTokens !== true) return this.#trainPasses(batch, options, null);
      const kept = scoredRows(batch.rows); // writes beyond the end of an array are dropped
      const empty = (): Float32Array[] =>
        batch.rows.map(({ tokens }, row) => new Float32Array(row < kept ? tokens : 0));
      const scores = { logprobs: empty(), entropies: empty() };
      const result = await this.#trainPasses(batch, options, scores);
      return result.applied ? { ...result, scores } : result;
    });
  }

  async #trainPasses(
    batch: RowSource<TrainSample>,
    options: TrainOptions,
    scores: TokenScores | null,
  ): Promise<StepResult<TrainMetrics>> {
    const { iterations = 1 } = options;
    const parts = miniBatches(batch, options.miniBatches ?? 1);
    if (iterations === 1 && parts.length === 1)
      return this.#trainPass(batch, { ...options, ...present({ scores: scores ?? undefined }) }, 1);
    const copies = { copies: copiesInTraining + copiesForPasses, copiesHeld: this.adapter ? 1 : copiesInTraining };
    requireRoom(this.#policy, copies, `training it in ${iterations * parts.length} steps`);
    const goBack = this.#checkpoint();
    const applied: TrainMetrics[] = [];
    let flat: StepResult<TrainMetrics> | null = null;
    for (let pass = 1; pass <= iterations; pass++) {
      for (const [i, part] of parts.entries()) {
        const number = (pass - 1) * parts.length + i + 1;
        const told = pass === 1 && scores ? { scores: scoresOf(part, scores) } : {};
        const result = await this.#trainPass(part, { ...options, ...referenceOf(part, options), ...told }, number);
        if (result.applied) applied.push(result.metrics);
        else if (parts.length > 1 && isFlat(result.metrics)) flat = result; // nothing in this part says which way to go
        else {
          goBack();
          const where = parts.length === 1 ? '' : `, in part ${i + 1} of ${parts.length}`;
          return { ...result, reason: `${result.reason}, in pass ${pass} of ${iterations}${where}` };
        }
      }
    }
    return applied.length === 0 && flat ? flat : { applied: true, metrics: meanOfPasses(applied) };
  }

  forwardLogprobs(given: Rows<MaskedSample>, options: LogprobOptions): Promise<Float32Array[]> {
    return this.#inTurn(async () => {
      const rows = rowsOf(given);
      requireTrainable(given, this.#policy.model.config);
      const { weights: folder, temperature } = options;
      const weights = folder === undefined ? this.#policy : await this.#policy.reference(folder);
      return this.#computer.score(rows, weights, temperature);
    });
  }

  digest(): Promise<string> {
    return this.#inTurn(async () => this.#policy.digest());
  }

  exportWeights(folder: string, options: ExportOptions = {}): Promise<string> {
    return this.#inTurn(async () => this.#policy.save(folder, options.base));
  }

  loadWeights(folder: string): Promise<string> {
    return this.#inTurn(async () => {
      await this.#computer.forgetFrozen();
      await this.#policy.load(folder);
      return this.#policy.digest();
    });
  }

  saveState(): Promise<Uint8Array> {
    return this.#inTurn(async () => this.#optimizer.save());
  }

  restoreState(state: Uint8Array): Promise<void> {
    return this.#inTurn(async () => this.#optimizer.restore(state));
  }

  resetMoments(): Promise<void> {
    return this.#inTurn(async () => this.#optimizer.reset());
  }

  close(): Promise<void> {
    return this.#inTurn(async () => {
      await this.#computer.close();
      await this.#optimizer.close();
    });
  }

  /** The gradient of the last step's loss, by tensor name, before clipping: for tests and probes. */
  get gradient(): FlatTensors {
    return this.#gradient;
  }

  async #trainPass(
    batch: RowSource<TrainSample>,
    options: TrainOptions & Pick<Pass, 'scores'>,
    number: number,
  ): Promise<StepResult<TrainMetrics>> {
    const parts = partsOfLoss(batch, options);
    const { temperature, scores } = options;
    // Scores cover sampled tokens only, so the part of observed tokens reports none.
    const passes = await Promise.all(
      parts.map((part) => passOf(part, temperature, part.name === 'ce' ? undefined : scores)),
    );
    const sums = await this.#accumulate(passes, options, number);
    const metrics = metricsOfParts(
      parts.map((part, i) => ({ ...part, sums: sums[i]! })),
      await this.#optimizer.globalNorm(this.#gradient.flat),
    );
    const reason = refusalReason(metrics);
    if (reason !== null) return { applied: false, reason, metrics };
    await this.#apply(metrics.gradNorm, options);
    return { applied: true, metrics };
  }

  #accumulate<Row extends MaskedSample>(
    passes: readonly Pass<Row>[],
    options: SftOptions,
    number: number,
  ): Promise<Sums[]> {
    const { microBatchPositions, microBatchRows, dropoutSeed = 0 } = options;
    const more = {
      dropout: { seed: dropoutSeed, pass: number },
      ...present({ microBatchPositions, microBatchRows }),
    };
    const all = passes.map((pass) => ({ ...pass, ...more }));
    return this.#computer.accumulate(all, this.#policy, this.#gradient, this.#microGradient);
  }

  async #apply(norm: number, { learningRate, optimizer }: SftOptions): Promise<void> {
    this.#policy.isAdapterNew = false;
    const { trained } = this.#policy;
    const spared = optimizer.decayMatricesOnly === true ? trained.layout.filter(({ shape }) => shape.length === 1) : [];
    await this.#optimizer.apply(trained.flat, this.#gradient.flat, { norm, learningRate, optimizer, spared });
    trained.changed();
  }

  /** Saves weights and optimizer; the returned function restores them. */
  #checkpoint(): () => void {
    const weights = this.#policy.trained.flat.slice();
    const optimizer = this.#optimizer.save();
    const { isAdapterNew } = this.#policy;
    return () => {
      this.#policy.trained.flat.set(weights);
      this.#policy.trained.changed();
      this.#policy.isAdapterNew = isAdapterNew;
      this.#optimizer.restore(optimizer);
    };
  }

  #inTurn<Result>(work: () => Promise<Result>): Promise<Result> {
    const turn = this.#tail.then(work);
    this.#tail = turn.catch(() => undefined);
    return turn;
  }
}

async function passOf(
  { loss, ...part }: PartOfLoss,
  temperature: number,
  scores: TokenScores | undefined,
): Promise<Pass<LearnedRow>> {
  return {
    ...part,
    ...present({ scores }),
    ...(loss?.type === 'custom' ? { customLoss: await customLossOf(loss) } : {}),
    ...(loss && lossTraits(loss.type).comparesRows ? { compareRows: { temperature, of: rowDifferences } } : {}),
  };
}

function referenceOf(
  { first, rows }: { readonly first: number; readonly rows: readonly unknown[] },
  { referenceLogprobs: of }: TrainOptions,
): Pick<TrainOptions, 'referenceLogprobs'> {
  return of ? { referenceLogprobs: of.slice(first, first + rows.length) } : {};
}

/** The arrays themselves, of the part's rows. */
function scoresOf(
  { first, rows }: { readonly first: number; readonly rows: readonly unknown[] },
  { logprobs, entropies }: TokenScores,
): TokenScores {
  const end = first + rows.length;
  return { logprobs: logprobs.slice(first, end), entropies: entropies && entropies.slice(first, end) };
}

/** Throws if the weights do not fit beside the existing ones. */
function requireRoom(
  { parameters, adapter }: TrainedPolicy,
  { copies, copiesHeld }: { readonly copies: number; readonly copiesHeld: number },
  purpose: string,
): void {
  const adapterCount = adapter ? { adapterCount: adapter.flat.length } : {};
  requireMemory(parameters.flat.length, copies, purpose, { copiesHeld, ...adapterCount });
}
