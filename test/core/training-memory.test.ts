/** The estimate of a GPU's memory, beside peaks that were measured, and beside figures that others published. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { knownModel } from '../../config/models/known-models.ts';
import type { ModelShape } from '../../core/model-shape.ts';
import { changesThatFit, type TrainingLoad, trainingMemory } from '../../core/training-memory.ts';

const allModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];

/** Made by bench/gpu/memory.py. */
interface Measured {
  readonly family: string;
  readonly hidden: number;
  readonly layers: number;
  readonly heads: number;
  readonly keyValueHeads: number;
  readonly headSize: number;
  readonly feedForward: number;
  readonly vocabulary: number;
  readonly tied: boolean;
  readonly rows: number;
  readonly length: number;
  readonly dtype: 'float32' | 'bfloat16';
  readonly microTokens: number | null;
  readonly acFreq: number;
  readonly loraR: number | null;
  readonly peakBytes: number;
}

const measured = JSON.parse(
  readFileSync(new URL('../data/torch-memory.json', import.meta.url), 'utf8'),
) as readonly Measured[];

const oneGpu = { ranks: 1, heldIn: 'float32', moments: 2, offloadsWeights: false, offloadsMoments: false } as const;

describe('the memory of a training step', () => {
  for (const one of measured) {
    const { family, hidden, layers, vocabulary, length, dtype, microTokens, acFreq, loraR, peakBytes } = one;
    const what = `${family}, ${layers} layers of ${hidden} and ${one.feedForward}, ${vocabulary} tokens, ${length} × ${one.rows}, ${dtype}`;
    test(`${what}, ac_freq ${acFreq}, ${loraR === null ? 'all weights' : 'LoRA'}: within an eighth of the peak`, () => {
      const shape: ModelShape = {
        hiddenSize: hidden,
        layerCount: layers,
        headCount: one.heads,
        keyValueHeadCount: one.keyValueHeads,
        headSize: one.headSize,
        feedForwardSize: one.feedForward,
        vocabularySize: vocabulary,
        tiedEmbeddings: one.tied,
        queryKeyValueBias: family === 'qwen2',
        queryKeyNorm: family === 'qwen3',
        experts: null,
      };
      const lora = loraR === null ? null : { r: loraR, targetModules: allModules };
      const tokens = microTokens ?? length - 1;
      const isPacked = microTokens !== null;
      const load = { ...oneGpu, shape, lora, tokens, dtype, recomputesEvery: acFreq, isPacked };
      const ratio = trainingMemory(load).total / peakBytes;
      assert.ok(ratio > 0.9 && ratio < 1.125, `it is ${ratio} of what was measured`);
    });
  }
});

const { shape } = knownModel('Qwen/Qwen2.5-7B-Instruct')!;
const adapters: TrainingLoad = {
  ...oneGpu,
  shape,
  lora: { r: 32, targetModules: allModules },
  tokens: 16_384,
  dtype: 'bfloat16',
  recomputesEvery: 0,
  isPacked: true,
};
const gib = 2 ** 30;

describe('a 7B model with adapters on a GPU of 80 GB', () => {
  /** prime-rl's guidelines for 7 to 8B: it has the logits of all tokens at once. */
  const published = [
    { tokens: 16_384, recomputesEvery: 0, gigabytes: null },
    { tokens: 16_384, recomputesEvery: 1, gigabytes: 65 },
    { tokens: 8_192, recomputesEvery: 1, gigabytes: 45 },
  ];
  for (const { gigabytes, ...one } of published) {
    const what = gigabytes === null ? 'does not fit' : `takes about ${gigabytes} GB`;
    test(`with ac_freq ${one.recomputesEvery} and ${one.tokens} tokens it ${what}, as published`, () => {
      const estimate = trainingMemory({ ...adapters, ...one, wholeLogits: true }).total / 1e9;
      if (gigabytes === null) assert.ok(estimate > 80, `${estimate}`);
      else assert.ok(Math.abs(estimate / gigabytes - 1) < 0.15, `${estimate}`);
    });
  }

  test('fits once activations are computed again, and the estimate says so', () => {
    assert.ok(trainingMemory(adapters).total > 80e9);
    const found = changesThatFit(adapters, 80e9, 1);
    assert.deepEqual(
      found?.map(({ setting, value }) => ({ setting, value })),
      [{ setting: 'trainer.ac_freq', value: 1 }],
    );
  });

  test('needs several changes on a GPU of 24 GB, and fits with them', () => {
    const found = changesThatFit(adapters, 24e9, 1);
    assert.ok(found && found.length > 1);
    assert.ok(trainingMemory(found.at(-1)!.load).total <= 24e9);
  });

  test('does not fit a GPU of 2 GB, whatever is changed', () => assert.equal(changesThatFit(adapters, 2e9, 1), null));
});

test('ranks share weights, gradients and moments, and offloading takes them away', () => {
  const full = { ...adapters, lora: null, recomputesEvery: 1 };
  const [one, four] = [trainingMemory(full), trainingMemory({ ...full, ranks: 4 })];
  assert.deepEqual([four.weights, four.gradients, four.moments], [one.weights / 4, one.gradients / 4, one.moments / 4]);
  assert.equal(four.activations, one.activations);
  assert.equal(trainingMemory({ ...full, offloadsMoments: true }).total, one.total - one.moments);
  assert.equal(trainingMemory({ ...full, offloadsWeights: true }).weights, 0);
  assert.ok(one.total > 100 * gib);
});
