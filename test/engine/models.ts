/** Small models and batches for the engine's tests. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { randomStream } from '../../core/random.ts';
import { rowsOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import { cutMicroBatches, type MicroBatch, readMicroBatches } from '../../engine/train/micro-batches.ts';
import type { OptimizerSpec } from '../../config/run-spec.ts';
import {
  createPreset,
  type ModelConfig,
  type ModelFolder,
  Parameters,
  type SequenceRequest,
} from '../../engine/index.ts';

export const optimizer: OptimizerSpec = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };

/** Two layers, grouped heads, small enough for finite differences. */
export const tinyConfig: ModelConfig = {
  family: 'qwen3',
  vocabularySize: 11,
  hiddenSize: 16,
  layerCount: 2,
  headCount: 4,
  keyValueHeadCount: 2,
  headSize: 16,
  feedForwardSize: 24,
  experts: null,
  activation: 'silu',
  normEpsilon: 1e-6,
  normsAddOne: false,
  sandwichNorms: false,
  queryKeyNorm: true,
  queryKeyValueBias: false,
  attentionOutputBias: false,
  feedForwardBias: false,
  embeddingScale: 1,
  attentionScale: 1 / 4,
  attention: [{ window: null, rotary: 'global' }],
  ropeTheta: 30,
  ropeScaling: null,
  localRopeTheta: 10_000,
  tiedEmbeddings: true,
  positionsMax: 32,
  endTokenIds: [1],
};

/** Every weight random, norms included, and large enough that no gradient hides in rounding. */
export function randomParameters(config: ModelConfig, seed: number): Parameters {
  const parameters = new Parameters(config);
  const random = randomStream('test weights', seed);
  for (const { name, shape } of parameters.layout) {
    const view = parameters.view(name);
    const center = shape.length === 1 ? 1 : 0;
    for (let i = 0; i < view.length; i++) view[i] = center + 0.8 * (random() - 0.5);
  }
  return parameters;
}

export function preset(seed = 0): ModelFolder {
  return createPreset('preset:reverse-text-0.2m', { seed });
}

export function wordRequest(model: ModelFolder, word: string, seed: number, temperature = 1): SequenceRequest {
  const promptTokenIds = model.tokenizer.renderChat([{ role: 'user', content: word }]);
  return { promptTokenIds, maxTokens: 10, temperature, seed, stopTokenIds: [1] };
}

export const words = ['cat', 'horse', 'elephant', 'dog', 'mouse', 'tiger', 'ant', 'giraffe'];

/** Ragged rows with several masked spans each, as turns of a conversation leave them. */
export function randomBatch(config: ModelConfig, count: number, seed: number): TrainSample[] {
  const random = randomStream('test batch', seed);
  return Array.from({ length: count }, () => {
    const length = 5 + Math.floor(random() * 6);
    const lossMask = Array.from({ length }, (_, t) => Number(t > 1 && random() < 0.6));
    lossMask[length - 1] = 1;
    const perToken = (draw: () => number): number[] => lossMask.map((mask) => (mask === 1 ? draw() : 0));
    const advantage = 2 * random() - 1;
    return {
      tokenIds: Array.from({ length }, () => Math.floor(random() * config.vocabularySize)),
      lossMask,
      behaviorLogprobs: perToken(() => -3 + random()),
      advantages: perToken(() => advantage),
    };
  });
}

export async function temporaryFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'ratchet-engine-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Weights that are numbers and give none: a logit adds up infinities of both signs. */
export function overflowing(): ModelFolder {
  const model = preset(0);
  model.parameters.view('model.norm.weight').fill(3e38);
  model.parameters.view('model.embed_tokens.weight').fill(3e38, -model.config.hiddenSize); // of the letter z
  return model;
}

/** Micro-batches as for a gradient. */
export async function microBatchesOf(samples: readonly TrainSample[]): Promise<MicroBatch<TrainSample>[]> {
  const source = rowsOf(samples);
  const micros: MicroBatch<TrainSample>[] = [];
  for await (const micro of readMicroBatches(source, cutMicroBatches(source.rows, 10_000))) micros.push(micro);
  return micros;
}
