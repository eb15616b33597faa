import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Tensor } from 'onnxruntime-node';
import { randomStream } from '../../core/random.ts';
import { gradients } from '../../engine/onnx/gradient.ts';
import { Graph, type Value } from '../../engine/onnx/graph.ts';
import * as ops from '../../engine/onnx/operators.ts';
import { openSession } from '../../engine/onnx/session.ts';

/** Builds an expression over inputs of the given shapes. */
interface Case {
  readonly name: string;
  readonly shapes: readonly (readonly number[])[];
  readonly build: (graph: Graph, ...inputs: Value[]) => Value;
}

const constant = (graph: Graph, shape: readonly number[], seed: number): Value =>
  graph.table(randomFloats(shape, seed), shape);

const cases: Case[] = [
  { name: 'add, broadcast', shapes: [[3, 4], [4]], build: (_, a, b) => ops.add(a, b) },
  {
    name: 'subtract, broadcast',
    shapes: [
      [3, 4],
      [3, 1],
    ],
    build: (_, a, b) => ops.subtract(a, b),
  },
  {
    name: 'multiply, broadcast',
    shapes: [
      [2, 3, 4],
      [3, 1],
    ],
    build: (_, a, b) => ops.multiply(a, b),
  },
  { name: 'a value used twice', shapes: [[5]], build: (_, a) => ops.multiply(a, ops.add(a, 2)) },
  { name: 'negate and exponential', shapes: [[6]], build: (_, a) => ops.exponential(ops.negate(a)) },
  { name: 'sum', shapes: [[3, 4]], build: (_, a) => ops.multiply(ops.sum(a, [1]), ops.sum(a, [1])) },
  {
    name: 'sum that keeps its axis',
    shapes: [[3, 4]],
    build: (_, a) => ops.multiply(a, ops.sum(a, [0], { keep: true })),
  },
  {
    name: 'reshape and transpose',
    shapes: [[2, 6]],
    build: (_, a) => ops.transpose(ops.reshape(a, [3, 2, 2]), [2, 0, 1]),
  },
  {
    name: 'linear',
    shapes: [
      [3, 4],
      [5, 4],
    ],
    build: (_, x, w) => ops.linear(x, w),
  },
  { name: 'softmax', shapes: [[3, 5]], build: (_, a) => ops.softmax(a) },
  {
    name: 'gatedSilu',
    shapes: [
      [3, 4],
      [3, 4],
    ],
    build: (_, g, u) => ops.gatedSilu(g, u),
  },
  { name: 'rmsNorm', shapes: [[3, 8], [8]], build: (_, x, w) => ops.rmsNorm(x, w, 1e-6) },
  { name: 'rmsNorm by head', shapes: [[2, 3, 8], [8]], build: (_, x, w) => ops.rmsNorm(x, w, 1e-6) },
  { name: 'embed with repeated rows', shapes: [[4, 3]], build: (g, table) => ops.embed(table, g.integers([1, 3, 1])) },
  { name: 'selectRows', shapes: [[4, 3]], build: (g, x) => ops.selectRows(x, g.integers([2, 0])) },
  { name: 'tokenLogprobs', shapes: [[3, 5]], build: (g, x) => ops.tokenLogprobs(x, g.integers([0, 4, 2])).tokens },
  {
    name: 'rotary',
    shapes: [[1, 2, 3, 16]],
    build: (g, x) =>
      ops.rotary(x, { positions: g.integers([0]), cosine: angles(g, Math.cos), sine: angles(g, Math.sin) }),
  },
  ...[false, true].flatMap((transposeA) =>
    [false, true].map((transposeB): Case => ({
      name: `matmul ${transposeA ? 'Aᵀ' : 'A'} ${transposeB ? 'Bᵀ' : 'B'}`,
      shapes: [transposeA ? [2, 4, 3] : [2, 3, 4], transposeB ? [2, 5, 4] : [2, 4, 5]],
      build: (_, a, b) => ops.matmul(a, b, { transposeA, transposeB, scale: 0.5 }),
    })),
  ),
];

for (const { name, shapes, build } of cases) {
  test(`the gradient of ${name} agrees with finite differences`, async () => {
    const graph = new Graph();
    const inputs = shapes.map((shape, i) => graph.input(`x${i}`, 'float32', shape, { needsGradient: true }));
    const result = build(graph, ...inputs);
    // A weighted sum, so that no gradient is a constant by accident.
    const weights = constant(graph, result.shape as number[], 99);
    const loss = ops.sum(
      ops.multiply(result, weights),
      result.shape.map((_, axis) => axis),
    );
    graph.output('loss', loss);
    gradients(loss, inputs).forEach((gradient, i) => graph.output(`d${i}`, gradient!));
    await requireFiniteDifferences(graph, shapes);
  });
}

test('nothing is computed for inputs that are frozen or cut off', () => {
  const graph = new Graph();
  const frozen = graph.input('frozen', 'float32', [3]);
  const live = graph.input('live', 'float32', [3], { needsGradient: true });
  const loss = ops.sum(ops.multiply(ops.multiply(frozen, frozen), ops.stopGradient(live)), [0]);
  assert.deepEqual(gradients(loss, [frozen, live]), [null, null]);
  assert.equal(ops.multiply(frozen, frozen).needsGradient, false);
});

test('shapes that do not fit are refused while the graph is built', () => {
  const graph = new Graph();
  const a = graph.input('a', 'float32', [2, 3]);
  assert.throws(() => ops.add(a, graph.input('b', 'float32', [4])), /does not broadcast/);
  assert.throws(() => ops.reshape(graph.input('c', 'float32', ['x', 'y']), ['y', 'x']), /not defined/);
});

async function requireFiniteDifferences(graph: Graph, shapes: readonly (readonly number[])[]): Promise<void> {
  const session = await openSession(graph, { threads: 1 });
  const values = shapes.map((shape, i) => randomFloats(shape, i));
  const run = async (): Promise<Record<string, Tensor>> =>
    session.run(Object.fromEntries(values.map((data, i) => [`x${i}`, new Tensor('float32', data, shapes[i])])));
  const exact = await run();
  const step = 1e-2;
  for (const [i, data] of values.entries()) {
    const gradient = exact[`d${i}`]!.data as Float32Array;
    for (let j = 0; j < data.length; j++) {
      const center = data[j]!;
      const lossAt = async (value: number): Promise<number> => {
        data[j] = value;
        return (await run())['loss']!.data[0] as number;
      };
      const slope = ((await lossAt(center + step)) - (await lossAt(center - step))) / (2 * step);
      data[j] = center;
      assert.ok(
        Math.abs(slope - gradient[j]!) < 5e-3 * Math.max(1, Math.abs(slope)),
        `x${i}[${j}]: ${slope} ≠ ${gradient[j]}`,
      );
    }
  }
  await session.release();
}

function randomFloats(shape: readonly number[], seed: number): Float32Array {
  const random = randomStream('operators', seed);
  return Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => 2 * random() - 1);
}

function angles(graph: Graph, wave: (angle: number) => number): Value {
  return graph.table(
    Float32Array.from({ length: 24 }, (_, i) => wave(Math.floor(i / 8) * 0.3 ** (i % 8))),
    [3, 8],
  );
}
