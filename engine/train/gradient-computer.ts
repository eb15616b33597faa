import assert from 'node:assert/strict';
import { present } from '../../core/present.ts';
import { trainLogitsMax, trainPositionsMax } from '../limits.ts';
import { type MaskedSample, type RowFacts, type Rows, rowsOf, type TokenScores } from '../../core/rl/learning/batch.ts';
import type { ModelConfig } from '../model/config.ts';
import type { LoraConfig } from '../model/adapter-layout.ts';
import { outputLayerName } from '../model/parameter-layout.ts';
import type { FlatTensors, Parameters } from '../model/parameters.ts';
import type { Graph } from '../onnx/graph.ts';
import type { InferenceSession, Tensor } from '../onnx/runtime.ts';
import { floats, openSession, type SessionOptions } from '../onnx/session.ts';
import { positionsKeptMax } from './activations.ts';
import { type DropoutKey, dropoutFeeds } from './dropout.ts';
import { type LossFeeds, type RowDifferences, scoreFeeds, tokenFeeds } from './feeds.ts';
import type { TokenLoss } from './loss.ts';
import { pairCost } from './lines.ts';
import {
  type Cut,
  cutMicroBatches,
  type MicroBatch,
  readMicroBatches,
  requireRow,
  scatter,
  slicePositions,
} from './micro-batches.ts';
import { addMetrics, type Sums } from './step-metrics.ts';
import type { PolicyWeights } from './trained-policy.ts';
import {
  buildHeadGraph,
  buildTrainGraph,
  buildTrunkGradientGraph,
  buildTrunkGraph,
  gradientName,
  type GradientKind,
} from './train-graph.ts';

export interface CustomLoss {
  readonly id: string;
  readonly tokenLoss: TokenLoss;
}

export interface Pass<Row extends MaskedSample = MaskedSample> {
  readonly kind: GradientKind;
  readonly rows: Rows<Row>;
  readonly lossFeeds: LossFeeds<Row>;
  /** Throws for a row that the loss cannot be computed of. */
  readonly requireRow?: (sample: Row, row: number) => void;
  readonly customLoss?: CustomLoss;
  /** How a loss that compares rows gets its differences from a micro-batch's log probabilities, at this temperature. */
  readonly compareRows?: {
    readonly temperature: number;
    readonly of: (micro: MicroBatch<Row>, logprobs: Float32Array) => RowDifferences;
  };
  readonly microBatchPositions?: number;
  readonly microBatchRows?: number;
  /** Key of the masks for adapters with dropout. */
  readonly dropout?: DropoutKey;
  /** Filled with the pass's scores of each token, if present: as long as the rows. */
  readonly scores?: TokenScores;
}

interface ComputerOptions extends SessionOptions {
  /** Logits computed at once; trainLogitsMax when left out. */
  readonly logitsMax?: number;
  /** Largest micro-batch, in positions, whose activations are kept; by default from the model's shape. */
  readonly positionsMax?: number;
  /**
   * Activations of every so many-th layer are recomputed for the gradient; by default of none, but of all in a longer
   * row.
   */
  readonly recomputesEvery?: number;
  /** Weights that stay as they are until `forgetFrozen`: sessions get them once instead of with every run. */
  readonly frozen?: Parameters | null;
}

/** Computes losses, gradients and scores of batches, by micro-batches that fit into memory. */
export class GradientComputer {
  readonly #config: ModelConfig;
  readonly #options: SessionOptions;
  readonly #sessions = new Map<string, Promise<InferenceSession>>();
  readonly #logitsMax: number;
  readonly #positionsMax: number;
  readonly #recomputesEvery: number;
  readonly #frozen: Parameters | null;
  /** Gradient of the output layer from one part of the positions; made when first needed. */
  #outputGradient: Tensor | null = null;

  constructor(config: ModelConfig, options: ComputerOptions) {
    this.#config = config;
    this.#options = options;
    this.#logitsMax = options.logitsMax ?? trainLogitsMax;
    this.#recomputesEvery = options.recomputesEvery ?? 0;
    this.#frozen = options.frozen ?? null;
    this.#positionsMax = options.positionsMax ?? positionsKeptMax(config);
  }

  /**
   * Overwrites `gradient` with the sum of the gradients of the passes, in their order; `scratch` holds those of micro-batches meanwhile.
   * Returns the sums of each pass.
   */
  async accumulate<Row extends MaskedSample>(
    passes: readonly Pass<Row>[],
    weights: PolicyWeights,
    gradient: FlatTensors,
    scratch: FlatTensors,
  ): Promise<Sums[]> {
    const cuts = passes.map((pass) =>
      this.#cut(rowsOf(pass.rows).rows, { ...pass, hasDropout: graphOptions(weights, pass).hasDropout }),
    );
    // One micro-batch overwrites all of it.
    const isOne = cuts.reduce((count, cut) => count + cut.length, 0) === 1;
    if (!isOne) gradient.flat.fill(0);
    const all: Sums[] = [];
    for (const [i, pass] of passes.entries()) {
      const sums: Sums = {};
      const check = (sample: Row, row: number): void => {
        requireRow(sample, row, this.#config);
        pass.requireRow?.(sample, row);
      };
      for await (const micro of readMicroBatches(rowsOf(pass.rows), cuts[i]!, check)) {
        const target = isOne ? gradient : scratch;
        const compute = this.#isWhole(micro) ? this.#whole(pass, micro) : this.#inParts(pass, micro);
        for (const metrics of await compute(weights, target)) addMetrics(sums, pass.kind, metrics);
        if (!isOne) addInto(gradient.flat, scratch.flat);
      }
      all.push(sums);
    }
    return all;
  }

  /** Log probability of every token that counts; 0 elsewhere. */
  async score(rows: Rows<MaskedSample>, weights: PolicyWeights, temperature: number): Promise<Float32Array[]> {
    const source = rowsOf(rows);
    const results = source.rows.map(({ tokens }) => new Float32Array(tokens));
    const check = (sample: MaskedSample, row: number): void => requireRow(sample, row, this.#config);
    for await (const micro of readMicroBatches(source, this.#cut(source.rows, {}), check)) {
      if (this.#isWhole(micro)) {
        const lora = weights.adapter?.lora ?? null;
        const sharesBeginnings = micro.sharing !== null;
        const session = await this.#session(weights, `score ${lora !== null} ${sharesBeginnings}`, () =>
          buildTrainGraph(this.#config, 'score', { lora, sharesBeginnings }),
        );
        const feeds = { ...tensorsOf(weights), ...tokenFeeds(micro), ...scoreFeeds(micro, temperature) };
        scatter(micro, floatsOf(await session.run(feeds), 'logprobs'), results);
      } else await this.#scoreInParts(micro, weights, temperature, results);
    }
    return results;
  }

  /** To be called before the frozen weights change: sessions keep a copy of them. */
  async forgetFrozen(): Promise<void> {
    if (this.#frozen) await this.close();
  }

  async close(): Promise<void> {
    for (const session of this.#sessions.values()) await (await session).release();
    this.#sessions.clear();
  }

  /** Under dropout each row has masks of its own, its beginning included. */
  #cut(
    rows: readonly RowFacts[],
    limits: Pick<Pass, 'microBatchPositions' | 'microBatchRows'> & { readonly hasDropout?: boolean },
  ): Cut {
    const { microBatchRows, hasDropout = false } = limits;
    const microBatchPositions = Math.min(limits.microBatchPositions ?? trainPositionsMax, this.#positionsMax);
    const selectedMax = Math.floor(this.#logitsMax / this.#config.vocabularySize);
    return cutMicroBatches(rows, microBatchPositions, {
      selectedMax,
      widthMax: this.#config.positionsMax,
      pairCost: hasDropout ? null : pairCost(this.#config),
      ...present({ rowsMax: microBatchRows }),
    });
  }

  #isWhole(micro: MicroBatch): boolean {
    return micro.selected.length * this.#config.vocabularySize <= this.#logitsMax;
  }

  #whole<Row extends MaskedSample>(pass: Pass<Row>, micro: MicroBatch<Row>) {
    return async (weights: PolicyWeights, target: FlatTensors): Promise<Float32Array[]> => {
      const session = await this.#gradientSession('whole', pass, weights, micro);
      const dropout = this.#dropoutFeeds(micro, weights, pass, session);
      const feeds = { ...tensorsOf(weights), ...tokenFeeds(micro), ...dropout, ...pass.lossFeeds(micro) };
      const fetches: Record<string, Tensor | null> = { metrics: null, ...scoreFetches(pass) };
      for (const [name, tensor] of Object.entries(target.tensors)) fetches[gradientName(name)] = tensor;
      const output = await session.run(feeds, fetches);
      takeScores(pass, micro, output);
      return [floatsOf(output, 'metrics')];
    };
  }

  /** The trunk once, the head over a part of the positions at a time, the trunk again with the gradient of its output. */
  #inParts<Row extends MaskedSample>(pass: Pass<Row>, micro: MicroBatch<Row>) {
    return async (weights: PolicyWeights, target: FlatTensors): Promise<Float32Array[]> => {
      const outputLayer = outputLayerName(this.#config);
      const outputGradient = weights.adapter ? null : floatsOf(target.tensors, outputLayer);
      outputGradient?.fill(0);
      const hidden = await this.#hidden(micro, weights, pass);
      const hiddenGradient = new Float32Array(hidden.length);
      const metrics: Float32Array[] = [];
      const session = await this.#gradientSession('head', pass, weights, micro);
      const fromHead = outputGradient && this.#outputGradientPart(weights);
      const rows = await this.#compareRows(pass, micro, hidden, weights);
      for (const part of this.#parts(micro)) {
        const feeds = { ...this.#headFeeds(part, hidden, weights), ...pass.lossFeeds(part.positions, rows) };
        const output = await session.run(feeds, {
          metrics: null,
          ...scoreFetches(pass),
          [gradientName('hidden')]: this.#rows(hiddenGradient, part),
          ...present({ [gradientName(outputLayer)]: fromHead ?? undefined }),
        });
        takeScores(pass, part.positions, output);
        metrics.push(floatsOf(output, 'metrics'));
        if (outputGradient && fromHead) addInto(outputGradient, fromHead.data as Float32Array);
      }
      await this.#trunkGradient(pass, micro, weights, { target, hiddenGradient });
      return metrics;
    };
  }

  /** Writes the gradients of the trunk. A tied output layer is also the embedding: it gets its share added. */
  async #trunkGradient(
    pass: GraphPass,
    micro: MicroBatch,
    weights: PolicyWeights,
    { target, hiddenGradient }: { readonly target: FlatTensors; readonly hiddenGradient: Float32Array },
  ): Promise<void> {
    const options = this.#gradientOptions(weights, pass, micro);
    const session = await this.#session(weights, `trunk gradient ${JSON.stringify(options)}`, () =>
      buildTrunkGradientGraph(this.#config, options),
    );
    const outputLayer = outputLayerName(this.#config);
    const isShared = this.#config.tiedEmbeddings && !weights.adapter;
    const fromTrunk = isShared ? this.#outputGradientPart(weights) : null;
    const fetches: Record<string, Tensor> = {};
    for (const [name, tensor] of Object.entries(target.tensors)) {
      if (name !== outputLayer) fetches[gradientName(name)] = tensor;
      else if (fromTrunk) fetches[gradientName(name)] = fromTrunk;
    }
    const feeds = {
      ...tensorsOf(weights),
      ...tokenFeeds(micro),
      ...this.#dropoutFeeds(micro, weights, pass, session),
      hidden_gradient: this.#rows(hiddenGradient),
    };
    await session.run(feeds, fetches);
    if (fromTrunk) addInto(floatsOf(target.tensors, outputLayer), fromTrunk.data as Float32Array);
  }

  async #scoreInParts(
    micro: MicroBatch,
    weights: PolicyWeights,
    temperature: number,
    results: readonly Float32Array[],
  ): Promise<void> {
    const hidden = await this.#hidden(micro, weights);
    await this.#scoreHidden(micro, { hidden, weights, temperature }, (part, logprobs) =>
      scatter(part.positions, logprobs, results),
    );
  }

  async #scoreHidden(
    micro: MicroBatch,
    of: { readonly hidden: Float32Array; readonly weights: PolicyWeights; readonly temperature: number },
    take: (part: Part, logprobs: Float32Array) => void,
  ): Promise<void> {
    const { hidden, weights, temperature } = of;
    const session = await this.#session(weights, 'score head', () => buildHeadGraph(this.#config, 'score'));
    for (const part of this.#parts(micro)) {
      const feeds = { ...this.#headFeeds(part, hidden, weights), ...scoreFeeds(part.positions, temperature) };
      take(part, floatsOf(await session.run(feeds), 'logprobs'));
    }
  }

  /** Before any part of a row is looked at by itself. */
  async #compareRows<Row extends MaskedSample>(
    { compareRows }: Pass<Row>,
    micro: MicroBatch<Row>,
    hidden: Float32Array,
    weights: PolicyWeights,
  ): Promise<RowDifferences | undefined> {
    if (!compareRows) return undefined;
    const logprobs = new Float32Array(micro.selected.length);
    await this.#scoreHidden(micro, { hidden, weights, temperature: compareRows.temperature }, (part, values) =>
      logprobs.set(values, part.first),
    );
    return compareRows.of(micro, logprobs);
  }

  /** Inputs of the output layer; with dropout only in a pass of training. */
  async #hidden(micro: MicroBatch, weights: PolicyWeights, pass?: GraphPass): Promise<Float32Array> {
    const options = { ...graphOptions(weights, pass), sharesBeginnings: micro.sharing !== null };
    const session = await this.#session(weights, `trunk ${JSON.stringify(options)}`, () =>
      buildTrunkGraph(this.#config, options),
    );
    const dropout = pass ? this.#dropoutFeeds(micro, weights, pass, session) : {};
    return floatsOf(await session.run({ ...tensorsOf(weights), ...tokenFeeds(micro), ...dropout }), 'hidden');
  }

  #headFeeds(part: Part, hidden: Float32Array, { parameters }: PolicyWeights): Record<string, Tensor> {
    const outputLayer = outputLayerName(this.#config);
    return { hidden: this.#rows(hidden, part), [outputLayer]: parameters.tensors[outputLayer]! };
  }

  #dropoutFeeds(
    micro: MicroBatch,
    { adapter }: PolicyWeights,
    { dropout }: GraphPass,
    { inputNames }: InferenceSession,
  ): Record<string, Tensor> {
    if (!adapter || !dropout || adapter.lora.dropout === 0) return {};
    return dropoutFeeds(micro, { config: this.#config, lora: adapter.lora, inputNames, key: dropout });
  }

  /** Equal parts of a micro-batch's positions, as few as fit. */
  #parts<Row extends MaskedSample>(micro: MicroBatch<Row>): Part<Row>[] {
    const total = micro.selected.length;
    const count = Math.ceil(total / Math.max(1, Math.floor(this.#logitsMax / this.#config.vocabularySize)));
    return Array.from({ length: count }, (_, i) => {
      const [first, end] = [Math.floor((i * total) / count), Math.floor(((i + 1) * total) / count)];
      return { first, end, positions: slicePositions(micro, first, end) };
    });
  }

  /** A view of rows of a [selected, hidden] matrix. */
  #rows(matrix: Float32Array, part?: Part): Tensor {
    const { hiddenSize } = this.#config;
    const { first, end } = part ?? { first: 0, end: matrix.length / hiddenSize };
    return floats(matrix.subarray(first * hiddenSize, end * hiddenSize), [end - first, hiddenSize]);
  }

  #outputGradientPart({ parameters }: PolicyWeights): Tensor {
    const outputLayer = parameters.tensors[outputLayerName(this.#config)];
    assert(outputLayer, 'every model has an output layer');
    return (this.#outputGradient ??= floats(new Float32Array(outputLayer.size), outputLayer.dims));
  }

  /** A micro-batch of more positions than are kept is a single row. */
  #gradientOptions(weights: PolicyWeights, pass: GraphPass, { lines, width, sharing }: MicroBatch) {
    const recomputesEvery = lines * width > this.#positionsMax ? 1 : this.#recomputesEvery;
    return { ...graphOptions(weights, pass), recomputesEvery, sharesBeginnings: sharing !== null };
  }

  #gradientSession(
    part: 'whole' | 'head',
    pass: GraphPass,
    weights: PolicyWeights,
    micro: MicroBatch,
  ): Promise<InferenceSession> {
    const { kind, customLoss } = pass;
    const build = part === 'whole' ? buildTrainGraph : buildHeadGraph;
    const options = this.#gradientOptions(weights, pass, micro);
    const key = `${part} ${kind} ${customLoss?.id ?? ''} ${JSON.stringify(options)}`;
    const custom = customLoss ? { customLoss: customLoss.tokenLoss } : {};
    return this.#session(weights, key, () => build(this.#config, kind, { ...options, ...custom }));
  }

  #session({ parameters }: PolicyWeights, key: string, build: () => Graph): Promise<InferenceSession> {
    const isFrozen = parameters === this.#frozen;
    const fullKey = `${key} ${isFrozen}`;
    const opened = this.#sessions.get(fullKey) ?? this.#open(build(), isFrozen ? parameters : null);
    this.#sessions.set(fullKey, opened);
    return opened;
  }

  #open(graph: Graph, frozen: Parameters | null): Promise<InferenceSession> {
    const names = graph.inputNames.filter((name) => frozen?.tensors[name] !== undefined);
    const tensors = Object.fromEntries(names.map((name) => [name, frozen!.tensors[name]!]));
    return openSession(graph, { ...this.#options, plansMemory: false }, { tensors });
  }
}

/** Positions `first` to before `end` of a micro-batch. */
interface Part<Row extends MaskedSample = MaskedSample> {
  readonly first: number;
  readonly end: number;
  readonly positions: MicroBatch<Row>;
}

/** The parts of a pass that decide its graphs. */
type GraphPass = Pick<Pass, 'kind' | 'customLoss' | 'dropout'>;

function scoreFetches({ scores }: Pick<Pass, 'scores'>): Record<string, null> {
  if (!scores) return {};
  return scores.entropies ? { logprobs: null, negative_entropies: null } : { logprobs: null };
}

function takeScores(
  { scores }: Pick<Pass, 'scores'>,
  micro: MicroBatch,
  output: Readonly<Record<string, Tensor>>,
): void {
  if (!scores) return;
  scatter(micro, floatsOf(output, 'logprobs'), scores.logprobs);
  const { entropies } = scores;
  if (entropies)
    scatter(
      micro,
      floatsOf(output, 'negative_entropies').map((value) => -value),
      entropies,
    );
}

function tensorsOf({ parameters, adapter }: PolicyWeights): Record<string, Tensor> {
  return { ...parameters.tensors, ...adapter?.tensors };
}

/** Dropout belongs to training: a policy that is scored has none. */
function graphOptions({ adapter }: PolicyWeights, pass?: GraphPass): { lora: LoraConfig | null; hasDropout: boolean } {
  const lora = adapter?.lora ?? null;
  return { lora, hasDropout: pass?.dropout !== undefined && lora !== null && lora.dropout > 0 };
}

export function floatsOf(outputs: Readonly<Record<string, Tensor>>, name: string): Float32Array {
  const data = outputs[name]?.data;
  assert(data instanceof Float32Array, `the graph gives ${name}`);
  return data;
}

function addInto(total: Float32Array, part: Float32Array): void {
  for (let i = 0; i < total.length; i++) total[i] = total[i]! + part[i]!;
}
