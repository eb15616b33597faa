import assert from 'node:assert/strict';
import type { Graph, Value } from './graph.ts';
import { type Dimension, elementTypes, type Shape } from './model-proto.ts';

/**
 * The operators of our graphs, each with its gradient. Shapes are in comments as [rows, columns]; `d` is the gradient
 * of the operator's output. Gradients are tested against finite differences, one operator at a time.
 */

export function add(a: Value, b: Value | number): Value {
  const other = lift(a.graph, b);
  return a.graph.node('Add', [a, other], {
    shape: broadcast(a.shape, other.shape),
    backward: [(d) => sumTo(d, a.shape), (d) => sumTo(d, other.shape)],
  });
}

export function subtract(a: Value, b: Value | number): Value {
  const other = lift(a.graph, b);
  return a.graph.node('Sub', [a, other], {
    shape: broadcast(a.shape, other.shape),
    backward: [(d) => sumTo(d, a.shape), (d) => sumTo(negate(d), other.shape)],
  });
}

export function multiply(a: Value, b: Value | number): Value {
  const other = lift(a.graph, b);
  return a.graph.node('Mul', [a, other], {
    shape: broadcast(a.shape, other.shape),
    backward: [(d) => sumTo(multiply(d, other), a.shape), (d) => sumTo(multiply(d, a), other.shape)],
  });
}

export function negate(a: Value): Value {
  return a.graph.node('Neg', [a], { shape: a.shape, backward: [negate] });
}

export function exponential(a: Value): Value {
  const result: Value = a.graph.node('Exp', [a], { shape: a.shape, backward: [(d) => multiply(d, result)] });
  return result;
}

/** The same numbers, with no gradient: sg(·) in the papers. */
export function stopGradient(a: Value): Value {
  return { ...a, needsGradient: false, inputs: [], backward: [] };
}

/** Elementwise minimum. Where it must not be differentiated it is used on values that carry no gradient. */
export function minimum(a: Value, b: Value): Value {
  assert(!a.needsGradient && !b.needsGradient, 'minimum has no gradient: stop it first');
  return a.graph.node('Min', [a, b], { shape: broadcast(a.shape, b.shape) });
}

export function absolute(a: Value): Value {
  assert(!a.needsGradient, 'absolute has no gradient: stop it first');
  return a.graph.node('Abs', [a], { shape: a.shape });
}

/** 1 where a > b, else 0. */
export function isGreater(a: Value, b: Value): Value {
  const shape = broadcast(a.shape, b.shape);
  const flags = a.graph.node('Greater', [stopGradient(a), b], { shape, type: 'bool' });
  return a.graph.node('Cast', [flags], { attributes: { to: { int: elementTypes.float32 } }, shape, type: 'float32' });
}

/** Sum over `axes`, which stay as size 1 when `keep` is set. */
export function sum(a: Value, axes: readonly number[], options: { keep?: boolean } = {}): Value {
  const kept = a.shape.map((size, axis) => (axes.includes(axis) ? 1 : size));
  const dropped = a.shape.filter((_, axis) => !axes.includes(axis));
  const keep = options.keep ?? false;
  return a.graph.node('ReduceSum', [a, a.graph.integers(axes)], {
    attributes: { keepdims: { int: keep ? 1 : 0 } },
    shape: keep ? kept : dropped,
    backward: [(d) => expandLike(keep ? d : reshape(d, kept), a)],
  });
}

/** Largest element of a vector, as a scalar. */
export function largest(a: Value): Value {
  assert(!a.needsGradient, 'largest has no gradient: stop it first');
  return a.graph.node('ReduceMax', [a, a.graph.integers([0])], { attributes: { keepdims: { int: 0 } }, shape: [] });
}

export function reshape(a: Value, shape: Shape): Value {
  if (sameShape(a.shape, shape)) return a;
  return a.graph.node('Reshape', [a, a.graph.reshapeVector(shape)], { shape, backward: [(d) => reshape(d, a.shape)] });
}

export function transpose(a: Value, permutation: readonly number[]): Value {
  const inverse = permutation.map((_, axis) => permutation.indexOf(axis));
  return a.graph.node('Transpose', [a], {
    attributes: { perm: { ints: permutation } },
    shape: permutation.map((axis) => dimension(a.shape, axis)),
    backward: [(d) => transpose(d, inverse)],
  });
}

/** x Wᵀ for x [rows, in] and W [out, in], the layout in which Hugging Face stores linear layers. */
export function linear(x: Value, weight: Value): Value {
  const rows = dimension(x.shape, 0);
  return x.graph.node('Gemm', [x, weight], {
    attributes: { transB: { int: 1 } },
    shape: [rows, dimension(weight.shape, 0)],
    backward: [
      (d) => x.graph.node('Gemm', [d, weight], { shape: x.shape }),
      (d) => x.graph.node('Gemm', [d, x], { attributes: { transA: { int: 1 } }, shape: weight.shape }),
    ],
  });
}

interface MatmulOptions {
  readonly transposeA?: boolean;
  readonly transposeB?: boolean;
  /** Factor on the product. */
  readonly scale?: number;
}

/** scale · A B over the last two axes, either of them transposed. */
export function matmul(a: Value, b: Value, options: MatmulOptions = {}): Value {
  const { transposeA = false, transposeB = false, scale = 1 } = options;
  const rank = a.shape.length;
  const rows = dimension(a.shape, transposeA ? rank - 1 : rank - 2);
  const columns = dimension(b.shape, transposeB ? rank - 2 : rank - 1);
  return a.graph.node('FusedMatMul', [a, b], {
    domain: 'com.microsoft',
    attributes: { transA: { int: Number(transposeA) }, transB: { int: Number(transposeB) }, alpha: { float: scale } },
    shape: [...a.shape.slice(0, -2), rows, columns],
    backward: [
      (d) =>
        transposeA
          ? matmul(b, d, { transposeA: transposeB, transposeB: true, scale })
          : matmul(d, b, { transposeB: !transposeB, scale }),
      (d) =>
        transposeB
          ? matmul(d, a, { transposeA: true, transposeB: transposeA, scale })
          : matmul(a, d, { transposeA: !transposeA, scale }),
    ],
  });
}

/** Softmax over the last axis. */
export function softmax(a: Value): Value {
  const last = a.shape.length - 1;
  const result: Value = a.graph.node('Softmax', [a], {
    attributes: { axis: { int: -1 } },
    shape: a.shape,
    backward: [
      (d) => {
        const weighted = multiply(d, result);
        return subtract(weighted, multiply(result, sum(weighted, [last], { keep: true })));
      },
    ],
  });
  return result;
}

/** silu(gate) · up with silu(x) = x σ(x) (Shazeer 2020, GLU Variants). The derivative reuses σ: silu′ = s + σ (1 − s). */
export function gatedSilu(gate: Value, up: Value): Value {
  const { graph, shape } = gate;
  const sigmoid = graph.node('Sigmoid', [stopGradient(gate)], { shape });
  const silu = graph.node('Mul', [stopGradient(gate), sigmoid], { shape });
  const slope = (): Value => add(silu, multiply(sigmoid, subtract(graph.scalar(1), silu)));
  const result = graph.node('Mul', [silu, stopGradient(up)], { shape });
  return {
    ...result,
    needsGradient: gate.needsGradient || up.needsGradient,
    inputs: [gate, up],
    backward: [(d) => multiply(multiply(d, stopGradient(up)), slope()), (d) => multiply(d, silu)],
  };
}

/**
 * x / sqrt(mean(x²) + ε) · w over the last axis (Zhang & Sennrich 2019). With r = 1/sqrt(…), x̂ = x r and n columns:
 * dx = r (d w − x̂ · ((d x̂)·w) / n), dw = Σ rows d x̂.
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
  const shared = rmsNormShared(stopGradient(x), inverseRms);
  return {
    ...result,
    needsGradient: x.needsGradient || weight.needsGradient,
    inputs: [x, weight],
    backward: [
      (d) => {
        const { normalized, product } = shared(d);
        const column = reshape(stopGradient(weight), [columns, 1]);
        const projected = graph.node('FusedMatMul', [product, column], {
          domain: 'com.microsoft',
          attributes: { alpha: { float: 1 / columns } },
          shape: inverseRms.shape,
        });
        return multiply(subtract(multiply(d, stopGradient(weight)), multiply(normalized, projected)), inverseRms);
      },
      (d) => sumTo(shared(d).product, weight.shape),
    ],
  };
}

/** x̂ and d·x̂, which both gradients of rmsNorm use; emitted once. */
function rmsNormShared(x: Value, inverseRms: Value): (d: Value) => { normalized: Value; product: Value } {
  let made: { normalized: Value; product: Value } | undefined;
  return (d) => {
    if (made) return made;
    const normalized = multiply(x, inverseRms);
    made = { normalized, product: multiply(d, normalized) };
    return made;
  };
}

/** Rows of a table by index: table [rows, columns], indices [count] → [count, columns]. Indices may repeat. */
export function embed(table: Value, indices: Value): Value {
  const columns = dimension(table.shape, 1);
  const rows = dimension(table.shape, 0);
  return table.graph.node('Gather', [table, indices], {
    attributes: { axis: { int: 0 } },
    shape: [...indices.shape, columns],
    backward: [(d) => scatterRows({ rows, columns, indices, values: d, repeats: true })],
  });
}

/** Some rows of x [rows, columns]; each index occurs once at most, so the gradient is written, not added. */
export function selectRows(x: Value, indices: Value): Value {
  const [rows, columns] = [dimension(x.shape, 0), dimension(x.shape, 1)];
  return x.graph.node('Gather', [x, indices], {
    attributes: { axis: { int: 0 } },
    shape: [...indices.shape, columns],
    backward: [(d) => scatterRows({ rows, columns, indices, values: d, repeats: false })],
  });
}

interface ScatterRows {
  readonly rows: Dimension;
  readonly columns: Dimension;
  readonly indices: Value;
  readonly values: Value;
  readonly repeats: boolean;
}

function scatterRows({ rows, columns, indices, values, repeats }: ScatterRows): Value {
  const { graph } = indices;
  const zeros = graph.node('Expand', [graph.scalar(0), graph.shapeVector([rows, columns])], {
    shape: [rows, columns],
    type: 'float32',
  });
  const long = indices.type === 'int64' ? indices : toLong(indices);
  const column = graph.node('Unsqueeze', [long, graph.integers([-1])], { shape: [...indices.shape, 1] });
  return graph.node('ScatterND', [zeros, column, values], {
    attributes: repeats ? { reduction: { string: 'add' } } : {},
    shape: [rows, columns],
  });
}

/** ScatterND knows 64-bit indices only. */
function toLong(indices: Value): Value {
  const attributes = { to: { int: elementTypes.int64 } };
  return indices.graph.node('Cast', [indices], { attributes, shape: indices.shape, type: 'int64' });
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

export interface TokenLogprobs {
  /** log softmax(logits)[i, targets[i]], [rows]. */
  readonly tokens: Value;
  /** The whole log softmax, [rows, vocabulary], without gradient. */
  readonly vocabulary: Value;
  /** Its exponential, emitted on first use and shared with the gradient. */
  readonly probabilities: () => Value;
}

/** Log probabilities of given tokens. The gradient is onehot − softmax, with no intermediate of logits' size but softmax. */
export function tokenLogprobs(logits: Value, targets: Value): TokenLogprobs {
  const { graph, shape } = logits;
  const rows = dimension(shape, 0);
  const attributes = { axis: { int: -1 } };
  const vocabulary = graph.node('LogSoftmax', [stopGradient(logits)], { attributes, shape });
  const column = graph.node('Unsqueeze', [targets, graph.integers([-1])], { shape: [rows, 1] });
  const gathered = graph.node('GatherElements', [vocabulary, column], { attributes, shape: [rows, 1] });
  let exponentials: Value | undefined;
  const probabilities = (): Value => (exponentials ??= exponential(vocabulary));
  const picked = graph.node('Squeeze', [gathered, graph.integers([-1])], { shape: [rows] });
  const tokens: Value = {
    ...picked,
    needsGradient: logits.needsGradient,
    inputs: [logits],
    backward: [
      (d) => {
        const update = reshape(d, [rows, 1]);
        return graph.node('ScatterElements', [multiply(probabilities(), negate(update)), column, update], {
          attributes: { ...attributes, reduction: { string: 'add' } },
          shape,
        });
      },
    ],
  };
  return { tokens, vocabulary, probabilities };
}

/** Concatenation of vectors without gradient: metrics leave the graph as one tensor. */
export function stack(values: readonly Value[]): Value {
  const [first] = values;
  assert(first, 'stack needs at least one value');
  const vectors = values.map((value) => reshape(stopGradient(value), [1]));
  return first.graph.node('Concat', vectors, { attributes: { axis: { int: 0 } }, shape: [values.length] });
}

/** Undoes broadcasting: sums d down to `shape`. */
function sumTo(d: Value, shape: Shape): Value {
  if (sameShape(d.shape, shape)) return d;
  const lead = d.shape.length - shape.length;
  const axes = d.shape.flatMap((size, axis) => (axis < lead || (shape[axis - lead] === 1 && size !== 1) ? [axis] : []));
  return reshape(sum(d, axes, { keep: true }), shape);
}

function expandLike(a: Value, like: Value): Value {
  return a.graph.node('Expand', [a, a.graph.node('Shape', [like], { shape: [like.shape.length], type: 'int64' })], {
    shape: like.shape,
    backward: [(d) => sumTo(d, a.shape)],
  });
}

function broadcast(a: Shape, b: Shape): Dimension[] {
  const rank = Math.max(a.length, b.length);
  return Array.from({ length: rank }, (_, axis) => {
    const left = a[a.length - rank + axis] ?? 1;
    const right = b[b.length - rank + axis] ?? 1;
    assert(left === right || left === 1 || right === 1, `[${a.join()}] does not broadcast with [${b.join()}]`);
    return left === 1 ? right : left;
  });
}

function sameShape(a: Shape, b: Shape): boolean {
  return a.length === b.length && a.every((size, axis) => size === b[axis]);
}

function dimension(shape: Shape, axis: number): Dimension {
  const size = shape[axis];
  assert(size !== undefined, `[${shape.join()}] has no axis ${axis}`);
  return size;
}

function lift(graph: Graph, value: Value | number): Value {
  return typeof value === 'number' ? graph.scalar(value) : value;
}
