import type { ModelConfig } from '../model/config.ts';
import { decoderLogits, rotaryTables, weightInputs } from '../model/decoder.ts';
import { gradients } from '../onnx/gradient.ts';
import { Graph, type Value } from '../onnx/graph.ts';
import {
  absolute,
  add,
  exponential,
  isGreater,
  largest,
  matmul,
  minimum,
  multiply,
  negate,
  reshape,
  rotary,
  selectRows,
  softmax,
  stack,
  stopGradient,
  subtract,
  sum,
  tokenLogprobs,
  type TokenLogprobs,
  transpose,
} from '../onnx/operators.ts';

/**
 * score: log probabilities of given tokens, no gradient.
 * sft: cross entropy. cispo: the policy gradient. cispo_kl: the same with a KL term against a reference policy.
 */
export type TrainGraphKind = 'score' | 'sft' | 'cispo' | 'cispo_kl';

/** What each graph reports, in this order, as sums over its tokens (a maximum for the last of cispo). */
export const graphMetrics = {
  score: [],
  sft: ['loss', 'entropy'],
  cispo: ['loss', 'entropy', 'mismatchKl', 'clipFraction', 'ratioMean', 'maxLogprobDifference'],
  cispo_kl: ['loss', 'entropy', 'mismatchKl', 'clipFraction', 'ratioMean', 'maxLogprobDifference', 'klDivergence'],
} as const;

export const gradientName = (parameter: string): string => `gradient.${parameter}`;

/** Masked positions see this instead of their score; exp() of it is 0 in 32-bit floats. */
const maskedScore = -1e9;

/**
 * Inputs: `tokens` int32 [batch, sequence] padded on the right; `selected` int64 [selected] = index, in the flattened
 * tokens, of each position whose next token counts; `targets` int64 [selected] = those next tokens; `mask` and other
 * vectors [selected]; scalars. The loss is divided by the mask's total over the whole batch, which is handed in, so
 * that gradients of micro-batches add up to the gradient of the batch.
 */
export function buildTrainGraph(config: ModelConfig, kind: TrainGraphKind): Graph {
  const graph = new Graph();
  const tokens = graph.input('tokens', 'int32', ['batch', 'sequence']);
  graph.defineSize('batch', tokens, 0);
  graph.defineSize('sequence', tokens, 1);
  const selected = graph.input('selected', 'int64', ['selected']);
  graph.defineSize('positions', reshape(tokens, ['positions']), 0);
  const weights = weightInputs(graph, config, kind !== 'score');
  const logits = decoderLogits(reshape(tokens, ['positions']), {
    config,
    weights,
    attend: causalAttention(graph, config),
    selectOutputs: (rows) => selectRows(rows, selected),
  });
  const scaled = multiply(logits, graph.input('inverse_temperature', 'float32', []));
  const logprobs = tokenLogprobs(scaled, graph.input('targets', 'int64', ['selected']));
  if (kind === 'score') {
    graph.output('logprobs', logprobs.tokens);
    return graph;
  }
  const { loss, metrics } = kind === 'sft' ? supervisedLoss(graph, logprobs) : policyLoss(graph, logprobs, kind);
  graph.output('metrics', stack([loss, ...metrics]));
  outputGradients(graph, loss, weights);
  return graph;
}

interface Loss {
  readonly loss: Value;
  /** Sums, in the order of graphMetrics after the loss. */
  readonly metrics: readonly Value[];
}

/** −Σ m ℓ / Σ m. */
function supervisedLoss(graph: Graph, logprobs: TokenLogprobs): Loss {
  const mask = vector(graph, 'mask');
  const loss = batchMean(graph, negate(sum(multiply(mask, logprobs.tokens), [0])));
  return { loss, metrics: [entropySum(logprobs, mask)] };
}

/**
 * CISPO (MiniMax-M1, 2025, eq. 4): −m · sg(min(ρ, c_hi)) · A · ℓ with ρ = exp(ℓ − μ); no lower clip. With a reference r
 * also β · m · (exp(d) − d − 1), d = log π_r − ℓ (Schulman, Approximating KL divergence, 2020, estimator k3).
 */
function policyLoss(graph: Graph, logprobs: TokenLogprobs, kind: 'cispo' | 'cispo_kl'): Loss {
  const mask = vector(graph, 'mask');
  const clipHigh = graph.input('clip_high', 'float32', []);
  const difference = stopGradient(subtract(logprobs.tokens, vector(graph, 'behavior_logprobs')));
  const ratio = exponential(difference);
  const weight = multiply(multiply(minimum(ratio, clipHigh), vector(graph, 'advantages')), mask);
  const objective = negate(sum(multiply(weight, logprobs.tokens), [0]));
  const masked = (value: Value): Value => sum(multiply(mask, value), [0]);
  const metrics = [
    entropySum(logprobs, mask),
    masked(subtract(subtract(ratio, 1), difference)),
    masked(isGreater(ratio, clipHigh)),
    masked(ratio),
    largest(multiply(mask, absolute(difference))),
  ];
  if (kind === 'cispo') return { loss: batchMean(graph, objective), metrics };
  const divergence = klSum(graph, logprobs.tokens, mask);
  const penalty = multiply(divergence, graph.input('beta', 'float32', []));
  return { loss: batchMean(graph, add(objective, penalty)), metrics: [...metrics, stopGradient(divergence)] };
}

function klSum(graph: Graph, logprobs: Value, mask: Value): Value {
  const difference = subtract(vector(graph, 'reference_logprobs'), logprobs);
  const estimate = subtract(subtract(exponential(difference), difference), 1);
  return sum(multiply(mask, estimate), [0]);
}

function entropySum(logprobs: TokenLogprobs, mask: Value): Value {
  const negative = sum(multiply(logprobs.probabilities(), logprobs.vocabulary), [1]);
  return negate(sum(multiply(mask, negative), [0]));
}

/** A sum over this graph's tokens, divided by the mask's total over the whole batch. */
function batchMean(graph: Graph, total: Value): Value {
  return multiply(total, graph.input('inverse_mask_total', 'float32', []));
}

function vector(graph: Graph, name: string): Value {
  return graph.input(name, 'float32', ['selected']);
}

function outputGradients(graph: Graph, loss: Value, weights: ReadonlyMap<string, Value>): void {
  const names = [...weights.keys()];
  const results = gradients(loss, [...weights.values()]);
  results.forEach((gradient, i) => {
    if (gradient) graph.output(gradientName(names[i]!), gradient);
  });
}

/**
 * Full causal attention. Query heads that share a key-value head are rows of one product:
 * [batch, keyValueHeads, group · sequence, headSize] × [batch, keyValueHeads, headSize, sequence].
 */
function causalAttention(
  graph: Graph,
  config: ModelConfig,
): (layer: number, query: Value, key: Value, value: Value) => Value {
  const { headCount, keyValueHeadCount, headSize } = config;
  const group = headCount / keyValueHeadCount;
  const groupedSequence = group === 1 ? 'sequence' : 'grouped_sequence';
  const tables = { positions: graph.integers([0]), ...rotaryTables(graph, config) };
  const bias = causalBias(graph, group, groupedSequence);
  const byHead = (value: Value, heads: number): Value =>
    transpose(reshape(value, ['batch', 'sequence', heads, headSize]), [0, 2, 1, 3]);
  return (_layer, query, key, value) => {
    const queries = reshape(rotary(byHead(query, headCount), tables), [
      'batch',
      keyValueHeadCount,
      groupedSequence,
      headSize,
    ]);
    const keys = rotary(byHead(key, keyValueHeadCount), tables);
    const scores = matmul(queries, keys, { transposeB: true, scale: 1 / Math.sqrt(headSize) });
    const attended = matmul(softmax(add(scores, bias)), byHead(value, keyValueHeadCount));
    const heads = reshape(attended, ['batch', headCount, 'sequence', headSize]);
    return reshape(transpose(heads, [0, 2, 1, 3]), ['positions', headCount * headSize]);
  };
}

/** [group · sequence, sequence]: 0 up to the diagonal, maskedScore above it, repeated for every head of a group. */
function causalBias(graph: Graph, group: number, groupedSequence: string): Value {
  const square = ['sequence', 'sequence'];
  const full = graph.node('Expand', [graph.scalar(maskedScore), graph.shapeVector(square)], { shape: square });
  const upper = graph.node('Trilu', [full, graph.integer(1)], { attributes: { upper: { int: 1 } }, shape: square });
  if (group === 1) return upper;
  return graph.node(
    'Concat',
    Array.from({ length: group }, () => upper),
    { attributes: { axis: { int: 0 } }, shape: [groupedSequence, 'sequence'] },
  );
}
