import assert from 'node:assert/strict';
import type { Graph, Value } from './graph.ts';
import { type Dimension, elementTypes, type TensorShape } from './model-proto.ts';

/**
 * The operators of our graphs, each with its gradient; composites.ts has those with gradients derived by hand. Shapes
 * are in comments as [rows, columns]; `d` is the gradient of the operator's output. Gradients are tested against finite
 * differences, one operator at a time.
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

/** Elementwise minimum, only of values without gradient. */
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

export function reshape(a: Value, shape: TensorShape): Value {
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

/** Rows of a table by index: table [rows, columns], indices [count] → [count, columns]. Indices may repeat. */
export function embed(table: Value, indices: Value): Value {
  const columns = dimension(table.shape, 1);
  const rows = dimension(table.shape, 0);
  return table.graph.node('Gather', [table, indices], {
    attributes: { axis: { int: 0 } },
    shape: [...indices.shape, columns],
    backward: [(d) => addRows({ rows, columns, indices, values: d })],
  });
}

/** Some rows of x [rows, columns]; each index occurs once at most, so the gradient is written, not added. */
export function selectRows(x: Value, indices: Value): Value {
  const [rows, columns] = [dimension(x.shape, 0), dimension(x.shape, 1)];
  return x.graph.node('Gather', [x, indices], {
    attributes: { axis: { int: 0 } },
    shape: [...indices.shape, columns],
    backward: [(d) => writeRows({ rows, columns, indices, values: d })],
  });
}

/** Takes rows of an x whose row count is not defined. */
export function takeRows(x: Value, indices: Value): Value {
  return x.graph.node('Gather', [x, indices], {
    attributes: { axis: { int: 0 } },
    shape: [...indices.shape, dimension(x.shape, 1)],
    backward: [(d) => placeRows(d, indices, x)],
  });
}

/** Its adjoint: rows at distinct indices of a table of zeros that is like `like`. */
export function placeRows(values: Value, indices: Value, like: Value): Value {
  const [rows, columns] = [dimension(like.shape, 0), dimension(values.shape, 1)];
  const { graph } = values;
  const table = multiply(stopGradient(like), 0);
  return graph.node('ScatterND', [table, columnOf(indices), values], {
    shape: [rows, columns],
    backward: [null, null, (d) => takeRows(d, indices)],
  });
}

interface PlacedRows {
  readonly rows: Dimension;
  readonly columns: Dimension;
  readonly indices: Value;
  readonly values: Value;
}

/** A table of zeros with rows written at distinct indices. */
function writeRows({ rows, columns, indices, values }: PlacedRows): Value {
  const shape = [rows, columns];
  return indices.graph.node('ScatterND', [zeros(indices.graph, shape), columnOf(indices), values], { shape });
}

/**
 * A table of zeros with rows added at indices that may repeat. Not ScatterND, whose reduction adds from several threads
 * at once and loses some of it (onnxruntime 1.30): ScatterElements keeps the rows of one target to one thread.
 */
function addRows({ rows, columns, indices, values }: PlacedRows): Value {
  const { graph } = indices;
  const shape = [rows, columns];
  const everywhere = graph.node('Expand', [columnOf(indices), graph.shapeVector(values.shape)], {
    shape: values.shape,
    type: 'int64',
  });
  return graph.node('ScatterElements', [zeros(graph, shape), everywhere, values], {
    attributes: { axis: { int: 0 }, reduction: { string: 'add' } },
    shape,
  });
}

function zeros(graph: Graph, shape: TensorShape): Value {
  return graph.node('Expand', [graph.scalar(0), graph.shapeVector(shape)], { shape, type: 'float32' });
}

/** Indices as int64 [count, 1], the only type that ScatterND accepts. */
export function columnOf(indices: Value): Value {
  const { graph } = indices;
  const attributes = { to: { int: elementTypes.int64 } };
  const long =
    indices.type === 'int64'
      ? indices
      : graph.node('Cast', [indices], { attributes, shape: indices.shape, type: 'int64' });
  return graph.node('Unsqueeze', [long, graph.integers([-1])], { shape: [...indices.shape, 1] });
}

/** Concatenation of vectors without gradient: metrics leave the graph as one tensor. */
export function stack(values: readonly Value[]): Value {
  const [first] = values;
  assert(first, 'stack needs at least one value');
  const vectors = values.map((value) => reshape(stopGradient(value), [1]));
  return first.graph.node('Concat', vectors, { attributes: { axis: { int: 0 } }, shape: [values.length] });
}

/** Undoes broadcasting: sums d down to `shape`. */
function sumTo(d: Value, shape: TensorShape): Value {
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

function broadcast(a: TensorShape, b: TensorShape): Dimension[] {
  const rank = Math.max(a.length, b.length);
  return Array.from({ length: rank }, (_, axis) => {
    const left = a[a.length - rank + axis] ?? 1;
    const right = b[b.length - rank + axis] ?? 1;
    assert(left === right || left === 1 || right === 1, `[${a.join()}] does not broadcast with [${b.join()}]`);
    return left === 1 ? right : left;
  });
}

function sameShape(a: TensorShape, b: TensorShape): boolean {
  return a.length === b.length && a.every((size, axis) => size === b[axis]);
}

export function dimension(shape: TensorShape, axis: number): Dimension {
  const size = shape[axis];
  assert(size !== undefined, `[${shape.join()}] has no axis ${axis}`);
  return size;
}

function lift(graph: Graph, value: Value | number): Value {
  return typeof value === 'number' ? graph.scalar(value) : value;
}
