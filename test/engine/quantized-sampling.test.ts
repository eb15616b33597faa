import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Sampler, type SequenceRequest } from '../../engine/index.ts';
import { createPreset } from '../../engine/model/presets.ts';
import { Graph } from '../../engine/onnx/graph.ts';
import { quantizedLinear, quantizeWeight } from '../../engine/onnx/quantized.ts';
import { floats, openSession } from '../../engine/onnx/session.ts';
import { GradientComputer } from '../../engine/train/gradient-computer.ts';
import { randomStream } from '../../core/random.ts';

const model = createPreset('preset:reverse-text-0.2m', { seed: 0 });
const { config, parameters } = model;
const quantized = await Sampler.open(config, { threads: 1, quantize: 'int8' });
after(() => quantized.release());

const requestsOf = (count: number): SequenceRequest[] =>
  Array.from({ length: count }, (_, row) => ({
    promptTokenIds: Array.from({ length: 3 + (row % 5) }, (_position, i) => 4 + ((row + i) % 20)),
    maxTokens: 8 + (row % 4),
    temperature: 1,
    seed: row,
    stopTokenIds: [],
  }));

test('a row sampled in int8 has the same bits alone, among others and on several threads', async () => {
  const requests = requestsOf(9);
  const together = await quantized.generate(parameters, requests);
  for (const [row, request] of requests.entries())
    assert.deepEqual(await quantized.generate(parameters, [request]), [together[row]]);
  const threaded = await Sampler.open(config, { threads: 2, quantize: 'int8', rowsPerThreadMin: 1 });
  try {
    assert.deepEqual(await threaded.generate(parameters, requests), together);
  } finally {
    await threaded.release();
  }
});

test('what is sampled in int8 has log probabilities near those of the weights as they are, and not the same', async () => {
  const requests = requestsOf(16);
  const results = await quantized.generate(parameters, requests);
  const computer = new GradientComputer(config, { threads: 1 });
  try {
    const samples = results.map(({ tokenIds }, row) => {
      const all = [...requests[row]!.promptTokenIds, ...tokenIds];
      return { tokenIds: all, lossMask: all.map((_, t) => Number(t >= all.length - tokenIds.length)) };
    });
    const scores = await computer.score(samples, { parameters, adapter: null }, 1);
    const differences = results.flatMap(({ logprobs }, row) =>
      logprobs.map((logprob, i) => Math.abs(logprob - scores[row]!.at(i - logprobs.length)!)),
    );
    const mean = differences.reduce((sum, one) => sum + one, 0) / differences.length;
    assert(mean > 1e-6 && mean < 0.02, `mean |Δ| ${mean}`);
  } finally {
    await computer.close();
  }
});

test('weights trained in place are quantized again', async () => {
  const [request] = requestsOf(1);
  const trained = parameters.clone();
  const before = await quantized.generate(trained, [request!]);
  assert.deepEqual(before, await quantized.generate(parameters, [request!]));
  for (let i = 0; i < trained.flat.length; i++) trained.flat[i]! *= 1.5;
  trained.changed();
  assert.notDeepEqual(await quantized.generate(trained, [request!]), before);
});

/** [rows, inputs] with one number in a hundred of thirty times the size, as activations of language models have them. */
function activations(rows: number, inputs: number, seed: string): Float32Array {
  const random = randomStream('activations', 0, seed);
  return Float32Array.from({ length: rows * inputs }, () => (random() - 0.5) * (random() < 0.01 ? 30 : 1));
}

for (const [inputs, outputs] of [
  [64, 32],
  [192, 65],
  [576, 16],
  [36, 8],
] as const) {
  test(`a quantized layer ${inputs} → ${outputs} gives the layer's product, also at the ends of its range`, async () => {
    const rows = 7;
    const graph = new Graph();
    const x = graph.input('x', 'float32', ['rows', inputs]);
    const weight = graph.input('weight', 'float32', [outputs, inputs]);
    graph.output('y', quantizedLinear(x, quantizeWeight(weight)));
    const session = await openSession(graph, { threads: 1 });
    const [data, matrix] = [activations(rows, inputs, 'x'), activations(outputs, inputs, 'w')];
    // The largest numbers side by side, with one sign: where sums of 16 bits would overflow.
    data.fill(5, 0, inputs);
    matrix.fill(3, 0, inputs);
    const { y } = await session.run({ x: floats(data, [rows, inputs]), weight: floats(matrix, [outputs, inputs]) });
    await session.release();
    const rowOf = (of: Float32Array, row: number): Float32Array => of.subarray(row * inputs, (row + 1) * inputs);
    const length = (of: Float32Array): number => Math.hypot(...of);
    for (let row = 0; row < rows; row++) {
      for (let output = 0; output < outputs; output++) {
        const [a, b] = [rowOf(data, row), rowOf(matrix, output)];
        const product = a.reduce((sum, value, i) => sum + value * b[i]!, 0);
        const off = Math.abs(Number(y!.data[row * outputs + output]) - product) / (length(a) * length(b));
        assert(off < 0.02, `row ${row}, output ${output} is off by ${off} of the lengths of both`);
      }
    }
  });
}
