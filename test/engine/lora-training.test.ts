import assert from 'node:assert/strict';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import {
  adaptedLayers,
  adapterParameterCount,
  EngineOptimizer,
  loadParameters,
  type LoraConfig,
  loraScale,
  mergeAdapter,
  saveModelFolder,
  type OptimizerOptions,
  type TrainOptions,
} from '../../engine/index.ts';
import { optimizer, preset, randomBatch, temporaryFolder } from './models.ts';

const lora: LoraConfig = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };
const options: TrainOptions = {
  learningRate: 1e-2,
  optimizer,
  loss: { type: 'cispo', clipHigh: 3, aggregation: 'token' },
  temperature: 1,
  klBeta: 0,
};
const base = preset(3);
const samples = randomBatch(base.config, 16, 1);

/** A folder with the base model, and a trainer of adapters on it. */
async function openStage(t: TestContext, over: Partial<OptimizerOptions> = {}) {
  const folder = await temporaryFolder(t);
  const baseFolder = join(folder, 'base');
  await saveModelFolder(base, baseFolder);
  const open = async (model = baseFolder, more: Partial<OptimizerOptions> = {}): Promise<EngineOptimizer> => {
    const trainer = await EngineOptimizer.open(model, { threads: 1, seed: 7, lora, ...over, ...more });
    t.after(() => trainer.close());
    return trainer;
  };
  return { folder, baseFolder, open, trainer: await open() };
}

test('a new adapter is its base: the same digest, the same log probabilities, nothing to diverge from', async (t) => {
  const { trainer, baseFolder } = await openStage(t);
  assert.equal(await trainer.digest(), base.parameters.digest());
  const own = await trainer.forwardLogprobs(samples, { temperature: 0.8 });
  const reference = await trainer.forwardLogprobs(samples, { temperature: 0.8, weights: baseFolder });
  own.forEach((row, r) => row.forEach((value, i) => assert.ok(Math.abs(value - reference[r]![i]!) < 1e-6)));
  const withKl = { ...options, temperature: 0.8, klBeta: 0.1, referenceLogprobs: reference };
  const { metrics } = await trainer.trainStep(samples, withKl);
  assert.ok(metrics.klDivergence! < 1e-9);
});

test('adapters have the gradient that the chain rule takes from the merged weights; the base has none and stays', async (t) => {
  const { trainer, folder, open } = await openStage(t);
  for (let i = 0; i < 3; i++) await trainer.trainStep(samples, options);
  assert.equal(trainer.model.parameters.digest(), base.parameters.digest());
  assert.equal(trainer.gradient.flat.length, adapterParameterCount(base.config, lora));

  const merged = join(folder, 'merged');
  await saveModelFolder({ ...base, parameters: mergeAdapter(base.parameters, trainer.adapter!) }, merged);
  const full = await open(merged, { lora: null });
  const still = { ...options, learningRate: 0 };
  const { metrics } = await full.trainStep(samples, still);
  const own = await trainer.trainStep(samples, still);
  assert.ok(Math.abs(own.metrics.loss - metrics.loss) < 1e-6);
  for (const { weight, a, b, inputs, outputs } of adaptedLayers(base.config, lora)) {
    const of = full.gradient.view(weight);
    const [factorA, factorB] = [trainer.adapter!.view(a), trainer.adapter!.view(b)];
    // dA = s Bᵀ dW, dB = s dW Aᵀ
    const expectedA = Array.from({ length: lora.r * inputs }, (_, e) => {
      const [k, i] = [Math.floor(e / inputs), e % inputs];
      return loraScale(lora) * sum(outputs, (o) => factorB[o * lora.r + k]! * of[o * inputs + i]!);
    });
    const expectedB = Array.from({ length: outputs * lora.r }, (_, e) => {
      const [o, k] = [Math.floor(e / lora.r), e % lora.r];
      return loraScale(lora) * sum(inputs, (i) => of[o * inputs + i]! * factorA[k * inputs + i]!);
    });
    requireClose(trainer.gradient.view(a), expectedA, a);
    requireClose(trainer.gradient.view(b), expectedB, b);
  }
});

function sum(count: number, term: (i: number) => number): number {
  let total = 0;
  for (let i = 0; i < count; i++) total += term(i);
  return total;
}

function requireClose(actual: ArrayLike<number>, expected: ArrayLike<number>, name: string): void {
  const largest = Array.from(expected).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  assert.ok(largest > 0, `${name} has a gradient`);
  for (let i = 0; i < expected.length; i++) {
    assert.ok(Math.abs(actual[i]! - expected[i]!) < 2e-5 * largest, `${name}[${i}]: ${actual[i]} and ${expected[i]}`);
  }
}

for (const type of ['adamw', 'muon', 'sgd', 'sign_sgd'] as const) {
  test(`training with ${type} continues bit for bit from an exported adapter, which everybody else knows by the same digest`, (t) =>
    continueFromAdapter(t, { ...options, optimizer: { ...optimizer, type } }));
}

async function continueFromAdapter(t: TestContext, options: TrainOptions): Promise<void> {
  const { trainer, folder, open } = await openStage(t);
  const adapterFolder = join(folder, 'step_2');
  await mkdir(adapterFolder);
  for (let i = 0; i < 2; i++) await trainer.trainStep(samples, options);
  const digest = await trainer.exportWeights(adapterFolder, { base: '../base' });
  assert.equal(await trainer.digest(), digest);
  assert.equal((await loadParameters(adapterFolder)).digest(), digest);
  const state = await trainer.saveState();
  for (let i = 0; i < 2; i++) await trainer.trainStep(samples, options);

  const resumed = await open(adapterFolder);
  assert.equal(await resumed.digest(), digest);
  await resumed.restoreState(state);
  for (let i = 0; i < 2; i++) await resumed.trainStep(samples, options);
  assert.equal(await resumed.digest(), await trainer.digest());
  assert.notEqual(await resumed.digest(), digest);

  // A trainer that is somewhere else comes back to the adapter, and to the base.
  assert.equal(await trainer.loadWeights(adapterFolder), digest);
  assert.equal(await trainer.loadWeights(join(folder, 'base')), base.parameters.digest());
}

test('an adapter of another kind is refused, and so is one where all weights are trained', async (t) => {
  const { trainer, folder, baseFolder, open } = await openStage(t);
  const adapterFolder = join(folder, 'adapter');
  await trainer.trainStep(samples, options);
  await trainer.exportWeights(adapterFolder);
  const refused = { code: 'ModelUnsupported', message: /holds an adapter/ };
  await assert.rejects(open(adapterFolder, { lora: { ...lora, r: 8 } }), refused);
  await assert.rejects(open(adapterFolder, { lora: { ...lora, alpha: 1 } }), refused);
  await assert.rejects(open(adapterFolder, { lora: null }), refused);
  const full = await open(baseFolder, { lora: null });
  await assert.rejects(full.loadWeights(adapterFolder), refused);
  await assert.rejects(open(baseFolder, { lora: { ...lora, targetModules: ['lm_head'] } }), {
    code: 'ModelUnsupported',
  });
  const fromPreset = await open('preset:reverse-text-0.2m');
  await assert.rejects(fromPreset.exportWeights(adapterFolder), { code: 'Unsupported', message: /is a preset/ });
});

test('what is dropped is keyed: by the seed and the row, not by the micro-batch or the part', async (t) => {
  const { trainer, open, baseFolder } = await openStage(t, { lora: { ...lora, dropout: 0.3 } });
  await trainer.trainStep(samples, options); // B is 0 before, and hides A's inputs
  const gradientOf = async (over: Partial<TrainOptions>, by = trainer): Promise<Float32Array> => {
    await by.trainStep(samples, { ...options, learningRate: 0, ...over });
    return by.gradient.flat.slice();
  };
  const first = await gradientOf({ dropoutSeed: 1 });
  assert.deepEqual(await gradientOf({ dropoutSeed: 1 }), first);
  assert.notDeepEqual(await gradientOf({ dropoutSeed: 2 }), first);
  requireClose(await gradientOf({ dropoutSeed: 1, microBatchRows: 3 }), first, 'by threes');
  const inParts = await open(baseFolder, { logitsMax: 3 * base.config.vocabularySize });
  inParts.adapter!.flat.set(trainer.adapter!.flat);
  requireClose(await gradientOf({ dropoutSeed: 1 }, inParts), first, 'in parts');

  // Scores have no dropout in them, and neither has a trainer without it.
  const without = await open(baseFolder, { lora });
  without.adapter!.flat.set(trainer.adapter!.flat);
  const scores = await trainer.forwardLogprobs(samples, { temperature: 1 });
  assert.deepEqual(await without.forwardLogprobs(samples, { temperature: 1 }), scores);
  const mean = new Float32Array(first.length);
  const draws = 60;
  for (let seed = 0; seed < draws; seed++) {
    (await gradientOf({ dropoutSeed: 100 + seed })).forEach((value, i) => (mean[i]! += value / draws));
  }
  const expected = await gradientOf({}, without);
  const cosine =
    sum(mean.length, (i) => mean[i]! * expected[i]!) /
    Math.sqrt(sum(mean.length, (i) => mean[i]! ** 2) * sum(mean.length, (i) => expected[i]! ** 2));
  assert.ok(cosine > 0.9, `the mean over masks points elsewhere: cosine ${cosine}`);
});

test('a base that sessions keep gives the same step, and another one after it was loaded', async (t) => {
  const { folder, open, trainer: fed } = await openStage(t);
  const kept = await open(undefined, { keepFrozen: true });
  const otherFolder = join(folder, 'other');
  await saveModelFolder(preset(4), otherFolder);
  for (const load of [null, otherFolder]) {
    if (load) for (const trainer of [fed, kept]) await trainer.loadWeights(load);
    const [a, b] = [await fed.trainStep(samples, options), await kept.trainStep(samples, options)];
    assert.ok(Math.abs(a.metrics.loss - b.metrics.loss) < 1e-5, `${a.metrics.loss} ≠ ${b.metrics.loss}`);
    assert.ok(Math.abs(a.metrics.gradNorm / b.metrics.gradNorm - 1) < 1e-5);
    fed.gradient.flat.forEach((value, i) => assert.ok(Math.abs(value - kept.gradient.flat[i]!) < 1e-5));
  }
});
