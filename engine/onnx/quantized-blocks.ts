import assert from 'node:assert/strict';
import type { Value } from './graph.ts';
import { elementTypes, type TensorShape } from './model-proto.ts';
import { add, dimension, linear, multiply, reshape, subtract, sum } from './operators.ts';
import type { QuantizedScheme } from './quantized.ts';

/** Inputs of a layer that share a scale and an offset, as in GGUF's Q4_1; a layer has a multiple of it. */
export const blockSize = 32;

/**
 * Weights of 4 bits: in each block of 32 inputs w = scale · level + least, with levels from 0 to 15, as in GGUF's Q4_1. So
 * weights from such a file are kept exactly.
 *
 * ONNX Runtime's MatMulNBits computes Σ scale · (level − 8) · x, and rounds x to 8 bits by block. The rest of a block,
 * (least + 8 · scale) · Σ x, is a product of matrices in 32-bit floats. Its kernels compute rows in pairs, and a single row in
 * another order.
 */
export const int4Blocks: QuantizedScheme = {
  rowsMultiple: 2,
  tensorsFor(name, [outputs = 0, inputs = 0]) {
    const blocks = inputs / blockSize;
    return [
      { name: `${name}.levels`, type: 'uint8', shape: [outputs, blocks, blockSize / 2] },
      { name: `${name}.scales`, type: 'float32', shape: [outputs, blocks] },
      { name: `${name}.offsets`, type: 'float32', shape: [outputs, blocks] },
    ];
  },
  product(x, [levels, scales, offsets]) {
    assert(levels && scales && offsets, 'a weight in blocks has levels, scales and offsets');
    const { graph } = x;
    const [rows, inputs, outputs] = [dimension(x.shape, 0), dimension(x.shape, 1), dimension(scales.shape, 0)];
    const product = graph.node('MatMulNBits', [x, levels, scales], {
      domain: 'com.microsoft',
      attributes: {
        K: { int: Number(inputs) },
        N: { int: Number(outputs) },
        bits: { int: 4 },
        block_size: { int: blockSize },
        accuracy_level: { int: roundedInputs },
      },
      shape: [rows, outputs],
    });
    const sums = graph.shared(`sums of blocks of ${x.name}`, () => {
      const blocks = reshape(x, [rows, Number(inputs) / blockSize, blockSize]);
      return sum(blocks, [2]);
    });
    return add(linear(sums, offsets), product);
  },
  quantize(weight) {
    const [outputs, inputs] = [Number(dimension(weight.shape, 0)), Number(dimension(weight.shape, 1))];
    const blocks = inputs / blockSize;
    const values = reshape(weight, [outputs * blocks, blockSize]);
    const least = ofBlock('ReduceMin', values);
    const range = subtract(ofBlock('ReduceMax', values), least);
    const { graph } = weight;
    // A block of equal numbers has the level 0 alone.
    const scale = graph.node('Max', [multiply(range, 1 / levelMax), graph.scalar(1e-30)], { shape: range.shape });
    const { shape } = values;
    const levels = graph.node('Round', [graph.node('Div', [subtract(values, least), scale], { shape })], { shape });
    const offset = add(least, multiply(scale, levelZero));
    const flat = [outputs, blocks];
    return [packed(levels, [...flat, blockSize / 2]), reshape(scale, flat), reshape(offset, flat)];
  },
};

const levelMax = 15;
/** MatMulNBits' zero point. */
const levelZero = 8;
/** MatMulNBits' accuracy_level for inputs of 8 bits. */
const roundedInputs = 4;

function ofBlock(operator: 'ReduceMin' | 'ReduceMax', values: Value): Value {
  const { graph } = values;
  const attributes = { keepdims: { int: 1 } };
  return graph.node(operator, [values, graph.integers([1])], { attributes, shape: [dimension(values.shape, 0), 1] });
}

/** Two levels a byte, the first in its lower half. */
function packed(levels: Value, shape: TensorShape): Value {
  const { graph } = levels;
  const pairs = reshape(levels, [-1, 2]);
  const every = (first: number): Value =>
    graph.node('Slice', [pairs, graph.integers([first]), graph.integers([first + 1]), graph.integers([1])], {
      shape: [dimension(pairs.shape, 0), 1],
    });
  const bytes = add(every(0), multiply(every(1), levelMax + 1));
  const attributes = { to: { int: elementTypes.uint8 } };
  return reshape(graph.node('Cast', [bytes], { attributes, shape: bytes.shape, type: 'uint8' }), shape);
}
