import type { PolicyLossType } from '../../core/rl/losses.ts';
import assert from 'node:assert/strict';
import { RatchetError } from '../../core/errors.ts';
import type { LossSettings } from '../../core/settings/learning.ts';
import type { ModelConfig } from '../model/config.ts';
import { decoderHidden, weightInputs } from '../model/decoder.ts';
import type { AdaptedLayer, LoraConfig } from '../model/adapter-layout.ts';
import { adapterInputs } from '../model/lora.ts';
import { outputLayerName } from '../model/parameter-layout.ts';
import { tokenLogprobs } from '../onnx/composites.ts';
import { gradients } from '../onnx/gradient.ts';
import { Graph, type Value } from '../onnx/graph.ts';
import { multiply, reshape, selectRows, stack, sum } from '../onnx/operators.ts';
import { causalAttention, type SharedRows } from './attention.ts';
import { policyLoss, supervisedLoss, type TokenLoss, tokenLosses } from './loss.ts';

/**
 * score: log probabilities of given tokens, no gradient.
 * sft: cross entropy. The others: a policy loss, with _kl also a KL term against a reference policy, with _entropy also a bonus for
 * the entropy of the policy.
 */
export type TrainGraphKind = 'score' | GradientKind;
export type GradientKind = 'sft' | `${PolicyLossType}${'' | '_kl'}${'' | '_entropy'}`;

const policyMetricNames = [
  'loss',
  'entropy',
  'mismatchKl',
  'clipFractionLow',
  'clipFractionHigh',
  'ratioMean',
  'maxLogprobDifference',
] as const;

/** The outputs of a graph, in this order: sums over its tokens, and one maximum. */
export function metricNames(kind: GradientKind): readonly string[] {
  if (kind === 'sft') return ['loss', 'entropy', 'nll'];
  return policyOf(kind).hasReference ? [...policyMetricNames, 'klDivergence'] : policyMetricNames;
}

type PolicyKind = Exclude<GradientKind, 'sft'>;

export function policyKind(
  { type, entropyCoef = 0 }: Pick<LossSettings, 'type' | 'entropyCoef'>,
  hasReference: boolean,
): PolicyKind {
  if (type !== 'cross_entropy') return `${type}${hasReference ? '_kl' : ''}${entropyCoef > 0 ? '_entropy' : ''}`;
  throw new RatchetError('Unsupported', 'The loss "cross_entropy" is that of sftStep; trainStep has policy losses.');
}

export const gradientName = (parameter: string): string => `gradient.${parameter}`;

type OutputLayer = Pick<ModelConfig, 'hiddenSize' | 'vocabularySize' | 'tiedEmbeddings'>;

interface GraphOptions {
  /** Adapters beside the weights; then only they are trained. */
  readonly lora?: LoraConfig | null;
  /** Whether inputs of adapters are multiplied by masks, inputs named by dropoutName. */
  readonly hasDropout?: boolean;
  /**
   * Activations of every so many-th layer are recomputed for the gradient: less memory, and with 1 a third more time. 0
   * = of none.
   */
  readonly recomputesEvery?: number;
  /** Whether rows with one beginning are one line of tokens: inputs `line_positions` and `line_bias`. */
  readonly sharesBeginnings?: boolean;
  /** Required by the kinds `custom` and `custom_kl`. */
  readonly customLoss?: TokenLoss;
}

/**
 * Inputs: `tokens` int32 [batch, sequence] padded on the right; `selected` int64 [selected] = index, in the flattened
 * tokens, of each position whose next token counts; `targets` int64 [selected] = those next tokens; vectors [selected],
 * among them `mask` and `weights` = mask · factor of its row; scalars. The loss is divided by the normalizer of the whole
 * batch, which is handed in, so that gradients of micro-batches add up to the gradient of the batch.
 */
export function buildTrainGraph(config: ModelConfig, kind: TrainGraphKind, options: GraphOptions = {}): Graph {
  const graph = new Graph();
  const { hidden, weights, trained } = trunk(graph, config, kind !== 'score', options);
  const outputLayer = weights.get(outputLayerName(config));
  assert(outputLayer, 'every model has an output layer');
  outputLoss(graph, { hidden, weight: outputLayer }, kind, { ...options, trained, seesRows: true });
  return graph;
}

/**
 * The three graphs below replace buildTrainGraph if a row has too many logits to be held at once: trunk forward, then the
 * head over a part of the positions at a time, then the trunk again with its gradient. The trunk is computed twice instead
 * of keeping its activations.
 *
 * Output `hidden` [selected, hidden]: the inputs of the output layer.
 */
export function buildTrunkGraph(config: ModelConfig, options: GraphOptions = {}): Graph {
  const graph = new Graph();
  graph.output('hidden', trunk(graph, config, false, options).hidden);
  return graph;
}

/** Inputs `hidden` and those of the loss; outputs as buildTrainGraph, of the output layer and of `hidden`. */
export function buildHeadGraph(config: OutputLayer, kind: TrainGraphKind, options: GraphOptions = {}): Graph {
  const graph = new Graph();
  const needsGradient = kind !== 'score';
  const name = outputLayerName(config);
  const hidden = graph.input('hidden', 'float32', ['selected', config.hiddenSize], { needsGradient });
  const isTrained = needsGradient && !options.lora;
  const weight = graph.input(name, 'float32', [config.vocabularySize, config.hiddenSize], { needsGradient: isTrained });
  const trained = new Map([['hidden', hidden]]);
  if (isTrained) trained.set(name, weight);
  outputLoss(graph, { hidden, weight }, kind, { ...options, trained, seesRows: false });
  return graph;
}

/** Input `hidden_gradient` [selected, hidden]; outputs the gradients of the trunk's weights. */
export function buildTrunkGradientGraph(config: ModelConfig, options: GraphOptions = {}): Graph {
  const graph = new Graph();
  const { hidden, trained } = trunk(graph, config, true, options);
  const gradient = graph.input('hidden_gradient', 'float32', hidden.shape);
  outputGradients(graph, sum(multiply(hidden, gradient), [0, 1]), trained);
  return graph;
}

/**
 * A loss of given log probabilities: input `logprobs` [selected], output their gradient. Its entropy is 0, since log
 * probabilities of single tokens do not give it.
 */
export function buildLogprobLossGraph(
  kind: GradientKind,
  { customLoss }: Pick<GraphOptions, 'customLoss'> = {},
): Graph {
  const graph = new Graph();
  const tokens = graph.input('logprobs', 'float32', ['selected'], { needsGradient: true });
  const { loss, metrics } =
    kind === 'sft'
      ? supervisedLoss(graph, { tokens })
      : policyLoss(graph, { tokens }, { ...ruleOf(kind, customLoss), seesRows: false });
  graph.output('metrics', stack([loss, ...metrics]));
  outputGradients(graph, loss, new Map([['logprobs', tokens]]));
  return graph;
}

/** Everything before the output layer: [selected, hidden]. */
function trunk(
  graph: Graph,
  config: ModelConfig,
  trainable: boolean,
  { lora = null, hasDropout = false, recomputesEvery = 0, sharesBeginnings = false }: GraphOptions,
): { hidden: Value; weights: ReadonlyMap<string, Value>; trained: ReadonlyMap<string, Value> } {
  const tokens = graph.input('tokens', 'int32', ['batch', 'sequence']);
  graph.defineSize('batch', tokens, 0);
  graph.defineSize('sequence', tokens, 1);
  const selected = graph.input('selected', 'int64', ['selected']);
  graph.defineSize('positions', reshape(tokens, ['positions']), 0);
  const weights = weightInputs(graph, config, trainable && !lora);
  const adapters = lora
    ? adapterInputs(graph, config, lora, { trainable, ...(hasDropout ? { dropout: drop } : {}) })
    : null;
  const hidden = decoderHidden(reshape(tokens, ['positions']), {
    config,
    weights,
    ...(adapters ? { adapters } : {}),
    attend: causalAttention(graph, config, sharesBeginnings ? sharedRows(graph) : null),
    recomputesEvery,
    selectOutputs: (rows) => selectRows(rows, selected),
  });
  const factors = [...(adapters?.values() ?? [])].flatMap(({ a, b }) => [a, b]);
  return { hidden, weights, trained: lora ? new Map(factors.map((factor) => [factor.name, factor])) : weights };
}

function sharedRows(graph: Graph): SharedRows {
  return {
    positions: graph.input('line_positions', 'int64', ['batch', 'sequence']),
    bias: graph.input('line_bias', 'float32', ['batch', 1, 'sequence', 'sequence']),
  };
}

/** The rows of a layer's input: all positions, or in the last layer only those that carry loss. */
export type DropoutRows = 'positions' | 'selected';

/** Input with the mask of a layer's input, [rows, inputs]: 0 for dropped elements, else 1 / (1 − dropout). */
export const dropoutName = (rows: DropoutRows, weight: string): string => `dropout.${rows}.${weight}`;

function drop(x: Value, { weight, inputs }: AdaptedLayer): Value {
  const [rows] = x.shape;
  assert(rows === 'positions' || rows === 'selected', 'the input of a layer is [positions or selected, inputs]');
  const name = dropoutName(rows, weight);
  const mask = x.graph.shared(name, () => x.graph.input(name, 'float32', [rows, inputs]));
  return multiply(x, mask);
}

/**
 * Turns inputs of the output layer, [selected, hidden], into log probabilities, and in training into metrics and
 * gradients as well.
 */
function outputLoss(
  graph: Graph,
  output: { readonly hidden: Value; readonly weight: Value },
  kind: TrainGraphKind,
  options: {
    readonly trained: ReadonlyMap<string, Value>;
    readonly customLoss?: TokenLoss;
    readonly seesRows: boolean;
  },
): void {
  const inverseTemperature = graph.input('inverse_temperature', 'float32', ['selected', 1]);
  const targets = graph.input('targets', 'int64', ['selected']);
  const logprobs = tokenLogprobs({ ...output, targets, inverseTemperature });
  if (kind === 'score') return graph.output('logprobs', logprobs.tokens);
  const { loss, metrics, negativeEntropies } =
    kind === 'sft'
      ? supervisedLoss(graph, logprobs)
      : policyLoss(graph, logprobs, { ...ruleOf(kind, options.customLoss), seesRows: options.seesRows });
  graph.output('metrics', stack([loss, ...metrics]));
  graph.output('logprobs', logprobs.tokens);
  if (negativeEntropies) graph.output('negative_entropies', negativeEntropies);
  outputGradients(graph, loss, options.trained);
}

function policyOf(kind: PolicyKind): { type: PolicyLossType; hasReference: boolean; hasEntropyBonus: boolean } {
  const [, type, kl, entropy] = /^(\w+?)(_kl)?(_entropy)?$/.exec(kind)!;
  // The template type of GradientKind guarantees it.
  return { type: type as PolicyLossType, hasReference: kl !== undefined, hasEntropyBonus: entropy !== undefined };
}

function ruleOf(kind: PolicyKind, customLoss: TokenLoss | undefined) {
  const policy = policyOf(kind);
  const tokenLoss = policy.type === 'custom' ? customLoss : tokenLosses[policy.type];
  assert(tokenLoss, 'a custom loss comes with its function');
  return { ...policy, tokenLoss };
}

function outputGradients(graph: Graph, loss: Value, weights: ReadonlyMap<string, Value>): void {
  const names = [...weights.keys()];
  const results = gradients(loss, [...weights.values()]);
  results.forEach((gradient, i) => {
    if (gradient) graph.output(gradientName(names[i]!), gradient);
  });
}
