import assert from 'node:assert/strict';
import type { Graph, Value } from './graph.ts';
import { elementTypes, type TensorShape } from './model-proto.ts';
import {
  add,
  columnOf,
  dimension,
  exponential,
  linear,
  matmul,
  multiply,
  negate,
  reshape,
  stopGradient,
  subtract,
  sum,
  transpose,
} from './operators.ts';

/**
 * Parts of a decoder as single operators, their gradients worked out by hand: fewer passes over memory than the
 * gradients of their parts would take, and nothing kept that the gradient can do without.
 */

/**
 * silu(gate) · up with silu(x) = x σ(x) (Shazeer 2020, GLU Variants). With h the result and silu′ = σ + silu (1 − σ):
 * d gate = d (h + σ (up − h)), d up = d silu.
 */
export function gatedSilu(gate: Value, up: Value): Value {
  const { graph, shape } = gate;
  const sigmoid = graph.node('Sigmoid', [stopGradient(gate)], { shape });
  const silu = graph.node('Mul', [stopGradient(gate), sigmoid], { shape });
  const result = graph.node('Mul', [silu, stopGradient(up)], { shape });
  const slope = (): Value => add(result, multiply(sigmoid, subtract(stopGradient(up), result)));
  return {
    ...result,
    needsGradient: gate.needsGradient || up.needsGradient,
    inputs: [gate, up],
    backward: [(d) => multiply(d, slope()), (d) => multiply(d, silu)],
  };
}

/**
 * x / sqrt(mean(x²) + ε) · w over the last axis (Zhang & Sennrich 2019). With r = 1/sqrt(…) and n columns:
 * dx = r (d w − x · r² ((d x)·w) / n), dw = Σ rows r (d x).
 */
export function rmsNorm(x: Value, weight: Value, epsilon: number): Value {
  const { graph, shape } = x;
  const columns = dimension(shape, shape.length - 1);
  assert(typeof columns === 'number', 'the normalized axis has a fixed size');
  const [result, inverseRms] = graph.nodes('SimplifiedLayerNormalization', [x, weight], {
    attributes: { axis: { int: -1 }, epsilon: { float: epsilon }, stash_type: { int: 1 } },
    shape,
    extraOutputs: [[...shape.slice(0, -1), 1]],
  });
  assert(inverseRms, 'SimplifiedLayerNormalization has two outputs');
  const [input, scale] = [stopGradient(x), stopGradient(weight)];
  const product = once((d) => multiply(d, input));
  return {
    ...result,
    needsGradient: x.needsGradient || weight.needsGradient,
    inputs: [x, weight],
    backward: [
      (d) => {
        const projected = graph.node('FusedMatMul', [product(d), reshape(scale, [columns, 1])], {
          domain: 'com.microsoft',
          attributes: { alpha: { float: 1 / columns } },
          shape: inverseRms.shape,
        });
        const factor = multiply(multiply(inverseRms, inverseRms), projected);
        return multiply(subtract(multiply(d, scale), multiply(input, factor)), inverseRms);
      },
      (d) => reshape(weightedSum(product(d), inverseRms, columns), weight.shape),
    ],
  };
}

/** Σ weights · row over all rows of x [..., columns], weights [..., 1] → [1, columns]; as a product of matrices. */
function weightedSum(x: Value, weights: Value, columns: number): Value {
  const { graph } = x;
  const rows = `rows of ${x.name}`;
  const flat = graph.node('Reshape', [x, graph.integers([-1, columns])], { shape: [rows, columns] });
  const line = graph.node('Reshape', [weights, graph.integers([1, -1])], { shape: [1, rows] });
  return graph.node('Gemm', [line, flat], { shape: [1, columns] });
}

export interface RotaryTables {
  /** int64 [1] = 0 (positions count from 0) or int64 [batch, sequence]. */
  readonly positions: Value;
  /** [positions, headSize / 2] each. */
  readonly cosine: Value;
  readonly sine: Value;
}

/** Rotary embedding on [batch, heads, sequence, headSize] (Su et al. 2021). A rotation's adjoint turns the other way. */
export function rotary(x: Value, tables: RotaryTables): Value {
  const { positions, cosine, sine } = tables;
  return x.graph.node('RotaryEmbedding', [x, positions, cosine, sine], {
    domain: 'com.microsoft',
    attributes: { interleaved: { int: 0 } },
    shape: x.shape,
    backward: [(d) => rotary(d, { positions, cosine, sine: negate(sine) })],
  });
}

interface AttentionShape {
  readonly headCount: number;
  /** headCount is a multiple of it: the heads of a group share keys and values. */
  readonly keyValueHeadCount: number;
  /** A multiple of 16, which the operator demands. */
  readonly headSize: number;
  /** Factor on the scores. */
  readonly scale: number;
  /** Number of visible positions, the own one included; null = all before it. */
  readonly window: number | null;
  /**
   * Added to scores, [batch, 1, sequence, sequence], when slots are not in order of their positions; the tables then
   * have a row for each slot.
   */
  readonly bias?: Value | null;
}

/**
 * Causal self-attention with rotary embedding, where there are tables. query [batch, sequence, heads ·
 * headSize], key and value [batch, sequence, keyValueHeads · headSize] → [batch, sequence, heads · headSize]; the sizes
 * `batch` and `sequence` are defined in the graph. With P = softmax(scores), O the result and D = Σ columns dO · O:
 * dS = P (dO Vᵀ − D) (Dao et al. 2022, FlashAttention, appendix B.2). Query heads that share a key-value head are rows
 * of one product: [batch, keyValueHeads, group · sequence, headSize].
 */
export function groupedQueryAttention(
  { query, key, value }: { query: Value; key: Value; value: Value },
  tables: RotaryTables | null,
  shape: AttentionShape,
): Value {
  const { headCount, keyValueHeadCount, headSize, scale } = shape;
  const needsGradient = query.needsGradient || key.needsGradient || value.needsGradient;
  const forward = attentionForward({ query, key, value }, tables, { ...shape, needsGradient });
  const { result, rotatedKey, values } = forward;

  const byHead = (x: Value, heads: number): Value =>
    transpose(reshape(x, ['batch', 'sequence', heads, headSize]), [0, 2, 1, 3]);
  const byToken = (x: Value, heads: number): Value =>
    reshape(transpose(reshape(x, ['batch', heads, 'sequence', headSize]), [0, 2, 1, 3]), [
      'batch',
      'sequence',
      heads * headSize,
    ]);
  const inGroups = (x: Value, columns: number | string): Value =>
    reshape(x, ['batch', keyValueHeadCount, 'group_sequence', columns]);
  const turned = (x: Value): Value => (tables ? rotary(x, tables) : x);
  const turnedBack = (x: Value, heads: number): Value => {
    const byHeads = reshape(x, ['batch', heads, 'sequence', headSize]);
    return tables ? rotary(byHeads, { ...tables, sine: negate(tables.sine) }) : byHeads;
  };

  const probabilities = (): Value => inGroups(forward.probabilities(), 'sequence');
  const outputs = once((d) => inGroups(byHead(d, headCount), headSize));
  const scores = once((d) => {
    const products = reshape(multiply(d, result), ['batch', 'sequence', headCount, headSize]);
    const sums = transpose(sum(products, [3], { keep: true }), [0, 2, 1, 3]);
    const fromValues = matmul(outputs(d), values, { transposeB: true });
    return multiply(probabilities(), subtract(fromValues, inGroups(sums, 1)));
  });
  return {
    ...result,
    needsGradient,
    inputs: [query, key, value],
    backward: [
      (d) => byToken(turnedBack(matmul(scores(d), rotatedKey, { scale }), headCount), headCount),
      (d) => {
        const queries = inGroups(turned(byHead(stopGradient(query), headCount)), headSize);
        const keys = matmul(scores(d), queries, { transposeA: true, scale });
        return byToken(turnedBack(keys, keyValueHeadCount), keyValueHeadCount);
      },
      (d) => byToken(matmul(probabilities(), outputs(d), { transposeA: true }), keyValueHeadCount),
    ],
  };
}

interface AttentionForward {
  readonly result: Value;
  /** [batch, keyValueHeads, sequence, headSize] each. */
  readonly rotatedKey: Value;
  readonly values: Value;
  /** softmax(scores), 0 above the diagonal, [batch, heads, sequence, sequence]. */
  readonly probabilities: () => Value;
}

/** ONNX Runtime's grouped-query attention: no score above the diagonal is computed. */
function attentionForward(
  parts: { query: Value; key: Value; value: Value },
  tables: RotaryTables | null,
  options: AttentionShape & { readonly needsGradient: boolean },
): AttentionForward {
  const { graph } = parts.query;
  const { headCount, keyValueHeadCount, headSize, scale, window, bias = null, needsGradient } = options;
  // In a first run the operator counts positions from 0, whatever its inputs say (onnxruntime 1.30).
  const turns = tables && bias === null ? [tables.cosine, tables.sine] : null;
  const turned = (x: Value): Value => (tables && !turns ? rotary(stopGradient(x), tables) : stopGradient(x));
  const { query, key, value } = {
    query: turned(parts.query),
    key: turned(parts.key),
    value: stopGradient(parts.value),
  };
  const cached: TensorShape = ['batch', keyValueHeadCount, 'sequence', headSize];
  const scores: TensorShape = ['batch', headCount, 'sequence', 'sequence'];
  const none = graph.absent();
  const { lastPositions, length } = sequenceLengths(graph);
  const [result, rotatedKey, values, probabilities] = graph.nodes(
    'GroupQueryAttention',
    [
      query,
      key,
      value,
      none,
      none,
      lastPositions,
      length,
      ...(turns ?? (bias ? [none, none] : [])),
      ...(bias ? [none, bias] : []),
    ],
    {
      domain: 'com.microsoft',
      attributes: {
        num_heads: { int: headCount },
        kv_num_heads: { int: keyValueHeadCount },
        do_rotary: { int: turns ? 1 : 0 },
        scale: { float: scale },
        ...(window !== null && { local_window_size: { int: window } }),
        // 2 = after the softmax.
        ...(needsGradient && { qk_output: { int: 2 } }),
      },
      shape: query.shape,
      extraOutputs: [cached, cached, ...(needsGradient ? [scores] : [])],
    },
  );
  assert(rotatedKey && values, 'grouped-query attention gives its keys and values');
  return {
    result,
    rotatedKey,
    values,
    probabilities: () => {
      assert(probabilities, 'probabilities are kept where a gradient is wanted');
      return probabilities;
    },
  };
}

/** Every row gets the length of the longest: padding on the right is invisible to earlier positions. */
function sequenceLengths(graph: Graph): { lastPositions: Value; length: Value } {
  return graph.shared('sequence lengths', () => {
    const size = graph.shapeVector(['sequence']);
    const attributes = { to: { int: elementTypes.int32 } };
    const length = graph.node('Cast', [reshape(size, [])], { attributes, shape: [], type: 'int32' });
    const last = graph.node('Cast', [graph.node('Sub', [size, graph.integers([1])], { shape: [1] })], {
      attributes,
      shape: [1],
      type: 'int32',
    });
    const lastPositions = graph.node('Expand', [last, graph.shapeVector(['batch'])], { shape: ['batch'] });
    return { lastPositions, length };
  });
}

export interface TokenLogprobs {
  /** log softmax(logits)[i, targets[i]], [rows]. */
  readonly tokens: Value;
  /** The whole log softmax, [rows, vocabulary], without gradient. */
  readonly vocabulary: Value;
  /** Its exponential, emitted on first use and shared with the gradient. */
  readonly probabilities: () => Value;
  /** −Σ p log p of each row, [rows], with its gradient. */
  readonly entropies: () => Value;
}

interface OutputLayer {
  /** [rows, columns]. */
  readonly hidden: Value;
  /** [vocabulary, columns]. */
  readonly weight: Value;
  /** int64 [rows]. */
  readonly targets: Value;
  /** [rows, 1]. */
  readonly inverseTemperature: Value;
}

/**
 * Log probabilities of given tokens, logits = hidden · weightᵀ / T. With G = softmax − onehot, the one matrix of logits'
 * size that the gradient makes: d hidden = −d/T · (G weight), d weight = −Gᵀ (d/T · hidden). Of the entropy H = −Σ p log p the same
 * with G = p (log p + H), since ∂H/∂logit = −p (log p + H).
 */
export function tokenLogprobs({ hidden, weight, targets, inverseTemperature }: OutputLayer): TokenLogprobs {
  const { graph } = hidden;
  const rows = dimension(hidden.shape, 0);
  const shape = [rows, dimension(weight.shape, 0)];
  const attributes = { axis: { int: -1 } };
  const [rowsBefore, table] = [stopGradient(hidden), stopGradient(weight)];
  const scaled = multiply(rowsBefore, inverseTemperature);
  const vocabulary = graph.node('LogSoftmax', [linear(scaled, table)], { attributes, shape });
  const column = columnOf(targets);
  const gathered = graph.node('GatherElements', [vocabulary, column], { attributes, shape: [rows, 1] });
  let exponentials: Value | undefined;
  const probabilities = (): Value => (exponentials ??= exponential(vocabulary));
  const excess = once(() => {
    const size = graph.node('Shape', [column], { shape: [2], type: 'int64' });
    const minusOnes = graph.node('Expand', [graph.scalar(-1), size], { shape: [rows, 1] });
    return graph.node('ScatterElements', [probabilities(), column, minusOnes], {
      attributes: { ...attributes, reduction: { string: 'add' } },
      shape,
    });
  });
  const columnOfGradient = (d: Value): Value => reshape(negate(d), [rows, 1]);
  /** `slopes` [rows, vocabulary]: by each logit, negated. */
  const ofLogits = (value: Value, slopes: (d: Value) => Value): Value => ({
    ...value,
    needsGradient: hidden.needsGradient || weight.needsGradient,
    inputs: [hidden, weight],
    backward: [
      (d) =>
        multiply(
          graph.node('Gemm', [slopes(d), table], { shape: hidden.shape }),
          multiply(columnOfGradient(d), inverseTemperature),
        ),
      (d) =>
        graph.node('Gemm', [slopes(d), multiply(scaled, columnOfGradient(d))], {
          attributes: { transA: { int: 1 } },
          shape: weight.shape,
        }),
    ],
  });
  const tokens = ofLogits(graph.node('Squeeze', [gathered, graph.integers([-1])], { shape: [rows] }), excess);
  const entropies = (): Value => {
    const values = negate(sum(multiply(probabilities(), vocabulary), [1]));
    return ofLogits(
      values,
      once(() => multiply(probabilities(), add(vocabulary, reshape(values, [rows, 1])))),
    );
  };
  return { tokens, vocabulary, probabilities, entropies };
}

/** A value that several gradients of one operator share: emitted once. */
function once(make: (d: Value) => Value): (d: Value) => Value {
  let made: Value | undefined;
  return (d) => (made ??= make(d));
}
