import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import {
  type AdapterParameters,
  createAdapter,
  mergeAdapter,
  MergedParameters,
  type Parameters,
  type SampleResult,
  Sampler,
  type SequenceRequest,
} from '../../engine/index.ts';
import { createPreset } from '../../engine/model/presets.ts';
import { Graph } from '../../engine/onnx/graph.ts';
import { blockSize, int4Blocks } from '../../engine/onnx/quantized-blocks.ts';
import { int8Rows } from '../../engine/onnx/quantized-rows.ts';
import { floats, openSession } from '../../engine/onnx/session.ts';
import { GradientComputer } from '../../engine/train/gradient-computer.ts';
import { randomStream } from '../../core/random.ts';
import { randomParameters, tinyConfig } from './models.ts';

const model = createPreset('preset:reverse-text-0.2m', { seed: 0 });
const { config, parameters } = model;
const samplers = {
  int8: await Sampler.open(config, { threads: 1, quantize: 'int8' }),
  int4: await Sampler.open(config, { threads: 1, quantize: 'int4' }),
};
after(() => Promise.all(Object.values(samplers).map((sampler) => sampler.release())));

const requestsOf = (count: number): SequenceRequest[] =>
  Array.from({ length: count }, (_, row) => ({
    promptTokenIds: Array.from({ length: 3 + (row % 5) }, (_position, i) => 4 + ((row + i) % 20)),
    maxTokens: 8 + (row % 4),
    temperature: 1,
    seed: row,
    stopTokenIds: [],
  }));

async function scoresOf(
  requests: readonly SequenceRequest[],
  results: readonly SampleResult[],
  parameters: Parameters,
) {
  const computer = new GradientComputer(config, { threads: 1 });
  try {
    const samples = results.map(({ tokenIds }, row) => {
      const all = [...requests[row]!.promptTokenIds, ...tokenIds];
      return { tokenIds: all, lossMask: all.map((_, t) => Number(t >= all.length - tokenIds.length)) };
    });
    return await computer.score(samples, { parameters, adapter: null }, 1);
  } finally {
    await computer.close();
  }
}

/** Mean |Δ| between a sampler's log probabilities and the trainer's. */
async function meanDifference(
  requests: readonly SequenceRequest[],
  results: readonly SampleResult[],
  of: Parameters,
): Promise<number> {
  const scores = await scoresOf(requests, results, of);
  const differences = results.flatMap(({ logprobs }, row) =>
    logprobs.map((logprob, i) => Math.abs(logprob - scores[row]!.at(i - logprobs.length)!)),
  );
  return differences.reduce((sum, one) => sum + one, 0) / differences.length;
}

/** The adapter of a step or two: what it adds is a part of what is there. */
function someAdapter(seed: number): AdapterParameters {
  const adapter = createAdapter(config, { r: 4, alpha: 8, dropout: 0, targetModules: 'all-linear' }, seed);
  const random = randomStream('adapted', 0, String(seed));
  for (let i = 0; i < adapter.flat.length; i++) adapter.flat[i]! += 0.1 * (random() - 0.5);
  return adapter;
}

const adapted = (seed: number): MergedParameters => mergeAdapter(parameters, someAdapter(seed));

for (const quantize of ['int8', 'int4'] as const) {
  const quantized = samplers[quantize];

  test(`a row sampled in ${quantize} has the same bits alone, among others and on several threads`, async () => {
    const requests = requestsOf(9);
    const threaded = await Sampler.open(config, { threads: 2, quantize, rowsPerThreadMin: 1 });
    try {
      for (const weights of [parameters, adapted(1)]) {
        const together = await quantized.generate(weights, requests);
        for (const [row, request] of requests.entries())
          assert.deepEqual(await quantized.generate(weights, [request]), [together[row]]);
        assert.deepEqual(await threaded.generate(weights, requests), together);
      }
    } finally {
      await threaded.release();
    }
  });

  test(`what is sampled in ${quantize} has log probabilities near those of the weights as they are, and not the same`, async () => {
    const requests = requestsOf(16);
    const mean = await meanDifference(requests, await quantized.generate(parameters, requests), parameters);
    const most = { int8: 0.02, int4: 0.2 }[quantize];
    assert(mean > 1e-6 && mean < most, `mean |Δ| ${mean}`);
  });

  test(`adapters of one base are sampled in ${quantize} beside it, each as it is`, async () => {
    const requests = requestsOf(16);
    const versions = [adapted(1), adapted(2)];
    const sampled = await Promise.all(versions.map((version) => quantized.generate(version, requests)));
    assert.notDeepEqual(sampled[0], sampled[1]);
    const ofBase = await quantized.generate(parameters, requests);
    const most = 2 * (await meanDifference(requests, ofBase, parameters)) + 0.01;
    for (const [i, version] of versions.entries()) {
      assert.notDeepEqual(sampled[i], ofBase);
      const mean = await meanDifference(requests, sampled[i]!, version);
      assert(mean < most, `mean |Δ| ${mean} of adapter ${i}, at most ${most}`);
    }
    assert.deepEqual(await quantized.generate(versions[0]!, requests), sampled[0], 'after the other had its turn');
    const neverMerged = (): never => assert.fail('nobody reads the merged weights');
    const { adapter, baseDigest: digest } = versions[0]!;
    const beside = new MergedParameters(neverMerged, adapter, { digest, base: parameters });
    assert.deepEqual(await quantized.generate(beside, requests), sampled[0]);
  });

  test(`weights trained in place are quantized in ${quantize} again`, async () => {
    const [request] = requestsOf(1);
    const trained = parameters.clone();
    const before = await quantized.generate(trained, [request!]);
    assert.deepEqual(before, await quantized.generate(parameters, [request!]));
    for (let i = 0; i < trained.flat.length; i++) trained.flat[i]! *= 1.5;
    trained.changed();
    assert.notDeepEqual(await quantized.generate(trained, [request!]), before);
  });
}

const small = { ...tinyConfig, vocabularySize: 24, positionsMax: 64 };
const shapes = {
  // How many rows an expert has depends on the rows that are there.
  'with experts': {
    ...small,
    hiddenSize: 32,
    experts: { count: 4, perToken: 2, feedForwardSize: 32, areNormalized: true },
  },
  'with biases': {
    ...small,
    hiddenSize: 32,
    feedForwardSize: 64,
    queryKeyValueBias: true,
    attentionOutputBias: true,
    feedForwardBias: true,
    tiedEmbeddings: false,
  },
  'of no whole blocks': { ...small, hiddenSize: 36, feedForwardSize: 100 },
};

for (const [name, config] of Object.entries(shapes))
  for (const quantize of [undefined, 'int8', 'int4'] as const)
    test(`a row of a model ${name} has the same bits alone and among others${quantize ? `, in ${quantize}` : ''}`, async () => {
      const weights = randomParameters(config, 1);
      const lora = { r: 1, alpha: 2, dropout: 0.1, targetModules: ['k_proj', 'o_proj'], rankStabilized: true };
      const adapter = createAdapter(config, lora, 1);
      adapter.flat.fill(0.1);
      const sampler = await Sampler.open(config, { threads: 1, quantize });
      const threaded = await Sampler.open(config, { threads: 2, quantize, rowsPerThreadMin: 1 });
      try {
        const requests = requestsOf(7).map((request, row) => ({
          ...request,
          promptTokenIds: request.promptTokenIds.slice(0, 1 + (row % 5)),
        }));
        for (const version of [weights, mergeAdapter(weights, adapter)]) {
          const together = await sampler.generate(version, requests);
          for (const [row, request] of requests.entries())
            assert.deepEqual(await sampler.generate(version, [request]), [together[row]], `row ${row}`);
          assert.deepEqual(await threaded.generate(version, requests), together);
        }
      } finally {
        await sampler.release();
        await threaded.release();
      }
    });

/** [rows, inputs] with one number in a hundred of thirty times the size, as activations of language models have them. */
function activations(rows: number, inputs: number, seed: string): Float32Array {
  const random = randomStream('activations', 0, seed);
  return Float32Array.from({ length: rows * inputs }, () => (random() - 0.5) * (random() < 0.01 ? 30 : 1));
}

for (const [inputs, outputs, scheme] of [
  [64, 32, 'int8Rows'],
  [192, 65, 'int8Rows'],
  [576, 16, 'int8Rows'],
  [36, 8, 'int8Rows'],
  [32, 7, 'int4Blocks'],
  [192, 65, 'int4Blocks'],
  [576, 16, 'int4Blocks'],
] as const) {
  test(`a layer ${inputs} → ${outputs} by ${scheme} gives the layer's product, also at the ends of its range`, async () => {
    const rows = 7;
    const { quantize, product } = { int8Rows, int4Blocks }[scheme];
    const graph = new Graph();
    const x = graph.input('x', 'float32', ['rows', inputs]);
    graph.defineSize('rows', x, 0);
    const weight = graph.input('weight', 'float32', [outputs, inputs]);
    graph.output('y', product(x, quantize(weight)));
    const session = await openSession(graph, { threads: 1 });
    const [data, matrix] = [activations(rows, inputs, 'x'), activations(outputs, inputs, 'w')];
    // The largest numbers side by side, with one sign: where sums of 16 bits would overflow.
    data.fill(5, 0, inputs);
    matrix.fill(3, 0, inputs);
    const { y } = await session.run({ x: floats(data, [rows, inputs]), weight: floats(matrix, [outputs, inputs]) });
    await session.release();
    const rowOf = (of: Float32Array, row: number): Float32Array => of.subarray(row * inputs, (row + 1) * inputs);
    const length = (of: Float32Array): number => Math.hypot(...of);
    const most = { int8Rows: 0.02, int4Blocks: 0.1 }[scheme];
    for (let row = 0; row < rows; row++) {
      for (let output = 0; output < outputs; output++) {
        const [a, b] = [rowOf(data, row), rowOf(matrix, output)];
        const expected = a.reduce((sum, value, i) => sum + value * b[i]!, 0);
        const off = Math.abs(Number(y!.data[row * outputs + output]) - expected) / (length(a) * length(b));
        assert(off < most, `row ${row}, output ${output} is off by ${off} of the lengths of both`);
      }
    }
  });
}

test('weights that a file had in blocks of 4 bits are kept as they were', async () => {
  const [outputs, inputs] = [5, 96];
  const random = randomStream('blocks', 0, 'levels');
  const matrix = new Float32Array(outputs * inputs);
  for (let start = 0; start < matrix.length; start += blockSize) {
    const [scale, least] = [random() + 0.1, random() - 0.5];
    // The ends are there, as they are in any block that was rounded.
    for (let i = 0; i < blockSize; i++)
      matrix[start + i] = scale * [0, 15, Math.floor(random() * 16)][Math.min(i, 2)]! + least;
  }
  const graph = new Graph();
  const x = graph.input('x', 'float32', ['rows', inputs]);
  graph.defineSize('rows', x, 0);
  graph.output('y', int4Blocks.product(x, int4Blocks.quantize(graph.input('weight', 'float32', [outputs, inputs]))));
  const session = await openSession(graph, { threads: 1 });
  // One input at a time, of a size that 8 bits hold: the product is the weights.
  const one = new Float32Array(inputs * inputs);
  for (let i = 0; i < inputs; i++) one[i * inputs + i] = 127;
  const { y } = await session.run({ x: floats(one, [inputs, inputs]), weight: floats(matrix, [outputs, inputs]) });
  await session.release();
  for (let i = 0; i < inputs; i++)
    for (let output = 0; output < outputs; output++) {
      const [actual, expected] = [Number(y!.data[i * outputs + output]) / 127, matrix[output * inputs + i]!];
      assert(Math.abs(actual - expected) < 1e-4, `weight ${output}, ${i}: ${actual}, not ${expected}`);
    }
});
