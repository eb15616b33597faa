import assert from 'node:assert/strict';
import { softmax } from '../onnx/activations.ts';
import type { Value } from '../onnx/graph.ts';
import { add, dimension, multiply, reshape, placeRows, stopGradient, takeRows } from '../onnx/operators.ts';
import type { Experts } from './config.ts';

/**
 * A mixture of experts (Shazeer et al. 2017; Qwen3's). Each row of x goes through the experts with its highest scores.
 * Their outputs are summed, weighted with the softmax of the scores over all experts, or over the chosen ones if
 * normalized. An expert computes only the rows that chose it.
 */
export function mixture(
  x: Value,
  scores: Value,
  { count, perToken, areNormalized, run }: Experts & { readonly run: (x: Value, expert: number) => Value },
): Value {
  const chosen = chosenExperts(scores, perToken);
  // Scores that are not chosen go out of the sum: their exponential is 0.
  const weights = areNormalized
    ? softmax(add(scores, multiply(add(chosen, -1), far)))
    : multiply(softmax(scores), chosen);
  const flat = reshape(weights, ['weights', 1]);
  let total: Value | null = null;
  for (let expert = 0; expert < count; expert++) {
    const own = rowsOf(chosen, expert);
    const place = add64(multiply64(own, count), expert);
    const given = multiply(run(takeRows(x, own), expert), takeRows(flat, place));
    const placed = placeRows(given, own, x);
    total = total ? add(total, placed) : placed;
  }
  assert(total, 'a mixture has experts');
  return total;
}

/**
 * Applies `run` to an even number of rows: x gets a last row of zeros if needed. The number of rows of an expert
 * depends on the other rows of the batch, and the kernels compute an odd last row in another order.
 */
export function inPairs(x: Value, run: (x: Value) => Value): Value {
  const { graph } = x;
  const [rows, columns] = [dimension(x.shape, 0), dimension(x.shape, 1)];
  const shape = graph.node('Shape', [x], { shape: [2], type: 'int64' });
  const count = graph.node('Slice', [shape, graph.integers([0]), graph.integers([1])], { shape: [1], type: 'int64' });
  const missing = graph.node('Mod', [count, graph.integers([2])], { shape: [1], type: 'int64' });
  const [before, after] = [graph.integers([0, 0]), graph.integers([0])];
  const attributes = { axis: { int: 0 } };
  const pads = graph.node('Concat', [before, missing, after], { attributes, shape: [4], type: 'int64' });
  const given = run(graph.node('Pad', [x, pads], { shape: [`even ${rows}`, columns] }));
  const ends = [graph.integers([0]), count, graph.integers([0])];
  return graph.node('Slice', [given, ...ends], { shape: [rows, dimension(given.shape, 1)] });
}

/** Exceeds every score. */
const far = 1e9;

/** 1 if an expert has one of the highest scores of its row, else 0. */
function chosenExperts(scores: Value, perToken: number): Value {
  const { graph, shape } = scores;
  const [values, indices] = graph.nodes('TopK', [stopGradient(scores), graph.integers([perToken])], {
    attributes: { axis: { int: -1 } },
    shape: [dimension(shape, 0), perToken],
    extraOutputs: [[dimension(shape, 0), perToken]],
  });
  assert(indices, 'TopK has two outputs');
  const zeros = multiply(stopGradient(scores), 0);
  const ones = add(multiply(stopGradient(values), 0), 1);
  const attributes = { axis: { int: -1 } };
  return graph.node('ScatterElements', [zeros, { ...indices, type: 'int64' }, ones], { attributes, shape });
}

/** int64 [rows of this expert] */
function rowsOf(chosen: Value, expert: number): Value {
  const { graph, shape } = chosen;
  const column = graph.node('Gather', [chosen, graph.integers([expert])], {
    attributes: { axis: { int: 1 } },
    shape: [dimension(shape, 0), 1],
  });
  const flat = graph.node('Reshape', [column, graph.integers([-1])], { shape: [dimension(shape, 0)] });
  const size = `rows of ${column.name}`;
  const found = graph.node('NonZero', [flat], { shape: [1, size], type: 'int64' });
  return graph.node('Reshape', [found, graph.integers([-1])], { shape: [size], type: 'int64' });
}

function multiply64(a: Value, by: number): Value {
  return a.graph.node('Mul', [a, a.graph.integers([by])], { shape: a.shape, type: 'int64' });
}

function add64(a: Value, by: number): Value {
  return a.graph.node('Add', [a, a.graph.integers([by])], { shape: a.shape, type: 'int64' });
}
