import assert from 'node:assert/strict';
import type { Graph, Value } from './graph.ts';
import { elementTypes, type Dimension } from './model-proto.ts';
import { dimension, multiply, reshape, transpose } from './operators.ts';
import type { QuantizedScheme } from './quantized.ts';

/**
 * Weights of 8 bits.
 *
 * x Wᵀ = (x H)(W H)ᵀ for an orthogonal H. Both sides are turned by Hadamard matrices first, which spread the few large numbers of
 * an activation over its block (Ashkboos et al. 2024, QuaRot), and are rounded then: each row of either side to whole numbers and
 * one scale. Sums of whole numbers are exact, so a row's bits depend on that row alone, in any order and for any number of threads.
 */
export const int8Rows: QuantizedScheme = {
  rowsMultiple: 1,
  tensorsFor: (name, [outputs = 0, inputs = 0]) => [
    { name: `${name}.values`, type: 'int8', shape: [inputs, outputs] },
    { name: `${name}.scales`, type: 'float32', shape: [outputs] },
  ],
  product(x, [values, scales]) {
    assert(values && scales, 'a quantized weight has values and scales');
    const { graph } = x;
    const { whole, scale } = graph.shared(`whole numbers of ${x.name}`, () => wholeRows(x));
    const product = graph.node('MatMulIntegerToFloat', [whole, values, graph.scalar(1), scales, zero(graph)], {
      domain: 'com.microsoft',
      shape: [dimension(x.shape, 0), dimension(values.shape, 1)],
      type: 'float32',
    });
    return multiply(product, scale);
  },
  quantize(weight) {
    const { graph, shape } = weight;
    const turned = turn(weight);
    const scale = scaleOf(turned, weightLevels);
    const levels = graph.node('Round', [graph.node('Div', [turned, scale], { shape })], { shape });
    const attributes = { to: { int: elementTypes.int8 } };
    const whole = graph.node('Cast', [levels], { attributes, shape, type: 'int8' });
    return [transpose(whole, [1, 0]), reshape(scale, [dimension(shape, 0)])];
  },
};

/** Level of the largest number in a row. Activations are offset by 128, where the operator is fastest. */
const activationLevels = 127;
const activationZero = 128;
/**
 * Not 127: processors without dot products of 8 bits add two products in 16 bits, and hold no more than 2 · 255 · 64.
 */
const weightLevels = 64;

/**
 * Quantizes each row of x to whole numbers with a scale of its own [rows, 1]; layers that read the same x share the
 * result.
 */
function wholeRows(x: Value): { readonly whole: Value; readonly scale: Value } {
  const { graph, shape } = x;
  const turned = turn(x);
  const scale = scaleOf(turned, activationLevels);
  const levels = graph.node('Div', [turned, scale], { shape });
  const whole = graph.node('QuantizeLinear', [levels, graph.scalar(1), zero(graph)], { shape, type: 'uint8' });
  return { whole, scale };
}

/** Factor that scales the largest number of each row to `levels`, [rows, 1]. */
function scaleOf(x: Value, levels: number): Value {
  const { graph } = x;
  const shape: Dimension[] = [dimension(x.shape, 0), 1];
  const sizes = graph.node('Abs', [x], { shape: x.shape });
  const attributes = { keepdims: { int: 1 } };
  const largest = graph.node('ReduceMax', [sizes, graph.integers([1])], { attributes, shape });
  // Rows of zeros stay zeros.
  return multiply(graph.node('Max', [largest, graph.scalar(1e-30)], { shape }), 1 / levels);
}

function zero(graph: Graph): Value {
  return graph.shared('zero of whole numbers', () => graph.bytes(Uint8Array.of(activationZero), []));
}

/** x H, block by block of each row. */
function turn(x: Value): Value {
  const { graph, shape } = x;
  const inputs = Number(dimension(shape, 1));
  const size = turnedTogether(inputs);
  if (size === 1) return x;
  const matrix = graph.shared(`Hadamard ${size}`, () => graph.table(hadamard(size), [size, size]));
  const blocks = [`blocks of ${x.name}`, size];
  const flat = graph.node('Reshape', [x, graph.integers([-1, size])], { shape: blocks });
  const product = graph.node('Gemm', [flat, matrix], { shape: blocks });
  return graph.node('Reshape', [product, graph.integers([-1, inputs])], { shape });
}

/** Larger blocks spread further and cost more: 64 · 64 products beside the in · out of the layer. */
const turnedTogetherMax = 64;

/** A power of two that goes into a row at least twice, so that no product of a single row takes another path. */
function turnedTogether(inputs: number): number {
  let size = 1;
  while (2 * size <= turnedTogetherMax && inputs % (4 * size) === 0) size *= 2;
  return size;
}

/** Sylvester's, scaled to be orthogonal: its entries are ± 1/sqrt(size), and it is its own transpose. */
function hadamard(size: number): Float32Array {
  const entry = (row: number, column: number): number => (isOdd(row & column) ? -1 : 1) / Math.sqrt(size);
  return Float32Array.from({ length: size * size }, (_, i) => entry(Math.floor(i / size), i % size));
}

/** Whether an odd number of its bits is set. */
function isOdd(bits: number): boolean {
  return bits !== 0 && isOdd(bits >> 1) !== ((bits & 1) === 1);
}
