import assert from 'node:assert/strict';
import { test } from 'node:test';
import { randomStream } from '../../core/random.ts';
import { gradients } from '../../engine/onnx/gradient.ts';
import { Graph, type Value } from '../../engine/onnx/graph.ts';
import * as activations from '../../engine/onnx/activations.ts';
import * as composites from '../../engine/onnx/composites.ts';
import * as ops from '../../engine/onnx/operators.ts';
import { Tensor } from '../../engine/onnx/runtime.ts';
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
  {
    name: 'gatedSilu',
    shapes: [
      [3, 4],
      [3, 4],
    ],
    build: (_, g, u) => composites.gatedSilu(g, u),
  },
  { name: 'rmsNorm', shapes: [[3, 8], [8]], build: (_, x, w) => composites.rmsNorm(x, w, 1e-6) },
  { name: 'rmsNorm by head', shapes: [[2, 3, 8], [8]], build: (_, x, w) => composites.rmsNorm(x, w, 1e-6) },
  { name: 'embed with repeated rows', shapes: [[4, 3]], build: (g, table) => ops.embed(table, g.integers([1, 3, 1])) },
  { name: 'selectRows', shapes: [[4, 3]], build: (g, x) => ops.selectRows(x, g.integers([2, 0])) },
  {
    name: 'tokenLogprobs',
    shapes: [
      [3, 4],
      [5, 4],
    ],
    build: (g, hidden, weight) => {
      const inverseTemperature = g.scalar(1 / 0.7);
      return composites.tokenLogprobs({ hidden, weight, targets: g.integers([0, 4, 0]), inverseTemperature }).tokens;
    },
  },
  {
    name: 'gatedGelu',
    shapes: [
      [3, 4],
      [3, 4],
    ],
    build: (_g, gate, up) => activations.gatedGelu(gate, up),
  },
  { name: 'softmax', shapes: [[3, 4]], build: (_g, x) => activations.softmax(x) },
  { name: 'takeRows', shapes: [[4, 3]], build: (g, x) => ops.takeRows(x, g.integers([2, 0])) },
  {
    name: 'placeRows',
    shapes: [[2, 3]],
    build: (g, values) => ops.placeRows(values, g.integers([2, 0]), g.table(new Float32Array(12), [4, 3])),
  },
  { name: 'rotary', shapes: [[1, 2, 3, 16]], build: (g, x) => composites.rotary(x, rotaryTables(g)) },
  ...(
    [
      [1, null],
      [2, null],
      [1, 2],
    ] as const
  ).map(([keyValueHeadCount, window]): Case => ({
    name: `attention with ${keyValueHeadCount} key-value heads for 2 query heads, window ${window ?? 'none'}`,
    shapes: [[2, 3, 32], ...[1, 2].map(() => [2, 3, 16 * keyValueHeadCount])],
    build: (g, query, key, value) => {
      g.defineSize('batch', query, 0);
      g.defineSize('sequence', query, 1);
      const parts = { query, key, value };
      const shape = { headCount: 2, keyValueHeadCount, headSize: 16, scale: 1 / 4, window };
      const tables = window === null ? rotaryTables(g) : null;
      return ops.reshape(composites.groupedQueryAttention(parts, tables, shape), [2, 3, 32]);
    },
  })),
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

test('rows of one index are all added, whatever the number of threads', async () => {
  const [rows, count, columns] = [8, 4096, 64];
  const graph = new Graph();
  const table = graph.input('table', 'float32', [rows, columns], { needsGradient: true });
  const indices = Array.from({ length: count }, (_, i) => (i * 7) % rows);
  graph.output('d', gradients(ops.sum(ops.embed(table, graph.integers(indices)), [0, 1]), [table])[0]!);
  const session = await openSession(graph, { threads: 2 });
  const output = await session.run({ table: new Tensor('float32', new Float32Array(rows * columns), [rows, columns]) });
  await session.release();
  assert.deepEqual([...new Set(output['d']!.data as Float32Array)], [count / rows]);
});

test('a sum with a product becomes part of the product, where nothing else reads it', async () => {
  const graph = new Graph();
  const x = graph.input('x', 'float32', [2, 3]);
  const w = graph.input('w', 'float32', [4, 3]);
  const rest = graph.input('rest', 'float32', [2, 4]);
  const read = ops.linear(x, w);
  graph.output('sum', ops.add(rest, ops.linear(x, w)));
  graph.output('both', ops.add(ops.add(read, rest), read));
  const operators = Buffer.from(graph.encode()).toString('latin1');
  assert.equal(operators.match(/Gemm_/g)?.length, 2);
  assert.equal(operators.match(/Add_/g)?.length, 2);
  const session = await openSession(graph, { threads: 1 });
  const feeds = Object.fromEntries(
    Object.entries({ x: [2, 3], w: [4, 3], rest: [2, 4] }).map(([name, shape], i) => [
      name,
      new Tensor('float32', randomFloats(shape, i), shape),
    ]),
  );
  const { sum, both } = await session.run(feeds);
  await session.release();
  const others = randomFloats([2, 4], 2);
  (both!.data as Float32Array).forEach((value, i) => {
    const expected = 2 * ((sum!.data as Float32Array)[i]! - others[i]!) + others[i]!;
    assert.ok(Math.abs(value - expected) < 1e-5, `${value} ≠ ${expected}`);
  });
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
    session.run(Object.fromEntries(values.map((data, i) => [`x${i}`, new Tensor('float32', data, shapes[i]!)])));
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

function rotaryTables(graph: Graph): composites.RotaryTables {
  return { positions: graph.integers([0]), cosine: angles(graph, Math.cos), sine: angles(graph, Math.sin) };
}

function angles(graph: Graph, wave: (angle: number) => number): Value {
  return graph.table(
    Float32Array.from({ length: 24 }, (_, i) => wave(Math.floor(i / 8) * 0.3 ** (i % 8))),
    [3, 8],
  );
}
