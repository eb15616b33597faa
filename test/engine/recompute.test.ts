import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Parameters } from '../../engine/index.ts';
import type { LoraConfig } from '../../engine/model/adapter-layout.ts';
import { AdapterParameters, createAdapter } from '../../engine/model/lora.ts';
import { activationBytes, passMemory, positionsKeptMax } from '../../engine/train/activations.ts';
import { GradientComputer } from '../../engine/train/gradient-computer.ts';
import { supervisedFeeds } from '../../engine/train/feeds.ts';
import { factsOf } from '../../core/rl/learning/batch.ts';
import { randomParameters, tinyConfig } from './models.ts';

const lora: LoraConfig = {
  r: 4,
  alpha: 8,
  dropout: 0.2,
  targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'],
};

const samples = [9, 14, 20].map((length, row) => ({
  tokenIds: Array.from({ length }, (_, i) => (3 * i + row) % tinyConfig.vocabularySize),
  lossMask: Array.from({ length }, (_, i) => Number(i > row)),
}));

const dropout = { seed: 7, pass: 0 };

/** An adapter whose B is not zero, as it is at first. */
function filled(adapter: AdapterParameters): AdapterParameters {
  adapter.flat.forEach((value, i) => (adapter.flat[i] = value === 0 ? Math.sin(i) / 4 : value));
  return adapter;
}

for (const adapts of [false, true]) {
  test(`layers that are computed again for the gradient give the same gradient, ${adapts ? 'of adapters with dropout' : 'of all weights'}`, async () => {
    const parameters = randomParameters(tinyConfig, 3);
    const adapter = adapts ? filled(createAdapter(tinyConfig, lora, 5)) : null;
    const gradients = [];
    for (const options of [
      { positionsMax: 1000 },
      { positionsMax: 1 },
      { recomputesEvery: 1 },
      { recomputesEvery: 2 },
    ]) {
      const computer = new GradientComputer(tinyConfig, { threads: 1, ...options });
      const make = () => (adapter ? new AdapterParameters(tinyConfig, lora) : new Parameters(tinyConfig));
      const [gradient, scratch] = [make(), make()];
      const pass = { kind: 'sft' as const, rows: samples, lossFeeds: supervisedFeeds(samples.map(factsOf)), dropout };
      await computer.accumulate([pass], { parameters, adapter }, gradient, scratch);
      gradients.push(gradient.flat);
      await computer.close();
    }
    const [kept, ...others] = gradients;
    const size = Math.max(...kept!.map(Math.abs));
    assert(size > 1e-3);
    for (const again of others)
      kept!.forEach((value, i) => assert(Math.abs(value - again[i]!) < 1e-5 * size, `${i}: ${value}, ${again[i]}`));
  });
}

test('a micro-batch keeps as many positions as its activations have room for', () => {
  const kept = positionsKeptMax(tinyConfig);
  assert(kept * activationBytes(tinyConfig) <= 1536 * 2 ** 20);
  assert((kept + 1) * activationBytes(tinyConfig) > 1536 * 2 ** 20);
});

test('the memory of a pass is that of the micro-batches that it is cut into', () => {
  const small = passMemory(tinyConfig);
  assert.equal(small.positions, 16_384); // as many as are computed at once of any model
  assert.equal(small.activationBytes, 16_384 * activationBytes(tinyConfig));
  const deep = { ...tinyConfig, layerCount: 30 };
  const [kept, half, none] = [0, 2, 1].map((every) => passMemory(deep, every).activationBytes);
  assert(none! < kept! / 5 && none! < half! && half! < kept!, `${none}, ${half}, ${kept}`);
  const large = { ...tinyConfig, layerCount: 3000, vocabularySize: 200_000 };
  assert.equal(passMemory(large).positions, positionsKeptMax(large));
  assert(passMemory(large).activationBytes <= 1536 * 2 ** 20);
  assert.equal(passMemory(large).logitBytes, 6 * 4 * 32 * 2 ** 20);
});
