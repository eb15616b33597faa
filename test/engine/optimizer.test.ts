import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { permutation } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import {
  EngineOptimizer,
  loadModelFolder,
  Sampler,
  type StepResult,
  type TrainMetrics,
  type TrainOptions,
} from '../../engine/index.ts';
import { optimizer, randomBatch, temporaryFolder, wordRequest, words } from './models.ts';

const open = (): Promise<EngineOptimizer> => EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3 });
const trainer = await open();
const sampler = await Sampler.open(trainer.model.config, { threads: 1 });
after(async () => {
  await trainer.close();
  await sampler.release();
});

const options: TrainOptions = {
  learningRate: 1e-3,
  optimizer,
  loss: { type: 'cispo', clipHigh: 3, aggregation: 'token' },
  temperature: 1,
  klBeta: 0,
};
const batch = randomBatch(trainer.model.config, 24, 1);

async function sampledBatch(temperature: number): Promise<TrainSample[]> {
  const requests = Array.from({ length: 48 }, (_, i) => wordRequest(trainer.model, words[i % 8]!, i, temperature));
  const results = await sampler.generate(trainer.model.parameters, requests);
  return results.map(({ tokenIds, logprobs }, i) => {
    const { promptTokenIds } = requests[i]!;
    const prompt = promptTokenIds.map(() => 0);
    return {
      tokenIds: [...promptTokenIds, ...tokenIds],
      lossMask: [...prompt, ...tokenIds.map(() => 1)],
      behaviorLogprobs: [...prompt, ...logprobs],
      advantages: [...prompt, ...tokenIds.map(() => (i % 2 === 0 ? 1 : -1))],
    };
  });
}

test('a bonus for entropy makes the policy less certain, in parts of the logits as in one, beside any aggregation', async (t) => {
  const loss = { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'sequence', entropyCoef: 0.5 } as const;
  const still = batch.map((row) => ({ ...row, advantages: row.advantages.map(() => 0) }));
  const [whole, parts] = await Promise.all(
    [{}, { logitsMax: 600 }].map((more) =>
      EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3, ...more }),
    ),
  );
  t.after(() => Promise.all([whole!.close(), parts!.close()]));
  const results = [];
  for (const each of [whole!, parts!]) results.push(await each.trainStep(still, { ...options, loss }));
  const [before, inParts] = results.map(({ metrics }) => metrics);
  assert.ok(Math.abs(before!.loss + 0.5 * before!.entropy) < 1e-5, `${before!.loss} of ${before!.entropy}`);
  assert.ok(Math.abs(before!.gradNorm / inParts!.gradNorm - 1) < 1e-4, `${before!.gradNorm}, ${inParts!.gradNorm}`);
  const { metrics: after } = await whole!.trainStep(still, { ...options, loss });
  assert.ok(after.entropy > before!.entropy, `${before!.entropy} to ${after.entropy}`);
});

test('what a step computes of each token is told: as scored before it, of the first pass, and without another bit of the step', async (t) => {
  const ways: Partial<TrainOptions>[] = [{}, { iterations: 2, miniBatches: 2 }];
  for (const [logitsMax, way] of [undefined, 600].flatMap((max) => ways.map((way) => [max, way] as const))) {
    const [told, silent] = await Promise.all(
      [0, 1].map(() =>
        EngineOptimizer.open('preset:reverse-text-0.2m', {
          threads: 1,
          seed: 3,
          ...(logitsMax === undefined ? {} : { logitsMax }),
        }),
      ),
    );
    t.after(() => Promise.all([told!.close(), silent!.close()]));
    const before = await told!.forwardLogprobs(batch, { temperature: 1 });
    const { scores, metrics } = await told!.trainStep(batch, { ...options, ...way, tellsTokens: true });
    assert.equal((await silent!.trainStep(batch, { ...options, ...way })).scores, undefined);
    assert.equal(await told!.digest(), await silent!.digest());
    const { logprobs, entropies } = scores!;
    let [sum, count, apart] = [0, 0, 0];
    for (const [r, { lossMask }] of batch.entries()) {
      // The second half was looked at after a step on the first.
      const isUnmoved = way.miniBatches === undefined || r < batch.length / 2;
      for (const [i, mask] of lossMask.entries()) {
        if (mask === 0) continue;
        sum += entropies![r]![i]!;
        count += 1;
        if (isUnmoved) apart = Math.max(apart, Math.abs(logprobs[r]![i]! - before[r]![i]!));
      }
    }
    assert.ok(apart < 1e-4, `${apart}`);
    assert.ok(Math.abs(sum / count - metrics.entropy) < 0.05, `${sum / count} and ${metrics.entropy}`);
  }
});

test('with decayMatricesOnly norms and biases do not decay, as in transformers’ Trainer; else all weights do', async (t) => {
  const weightsAfter = async (more: Partial<typeof optimizer>) => {
    const each = await open();
    t.after(() => each.close());
    await each.trainStep(batch, { ...options, optimizer: { ...optimizer, ...more } });
    const { layout } = each.model.parameters;
    const of = (isVector: boolean) =>
      layout
        .filter(({ shape }) => (shape.length === 1) === isVector)
        .flatMap(({ name }) => Array.from(each.model.parameters.view(name)));
    return { vectors: of(true), matrices: of(false) };
  };
  const none = await weightsAfter({});
  const spared = await weightsAfter({ weightDecay: 0.1, decayMatricesOnly: true });
  const all = await weightsAfter({ weightDecay: 0.1 });
  assert.ok(none.vectors.length > 0);
  // A decay of 0.1 at this learning rate moves a norm of 1 by 1e-4.
  const differs = (one: readonly number[], other: readonly number[]): boolean =>
    one.some((value, i) => Math.abs(value - other[i]!) > 1e-6);
  assert.ok(!differs(spared.vectors, none.vectors));
  assert.ok(differs(all.vectors, none.vectors));
  assert.ok(differs(spared.matrices, none.matrices));
  assert.ok(!differs(spared.matrices, all.matrices));
});

test('rows of several temperatures are each trained at their own, in one batch', async () => {
  const temperatures = [0.6, 1, 1.7];
  const rows = (await Promise.all(temperatures.map(sampledBatch))).map((sampled, i) =>
    sampled.map((row) => ({ ...row, temperature: temperatures[i]! })),
  );
  const mixed = rows[0]!.flatMap((_, i) => rows.map((sampled) => sampled[i]!));
  const { metrics } = await trainer.trainStep(mixed, { ...options, learningRate: 0 });
  assert.ok(metrics.maxLogprobDifference < 1e-4 && Math.abs(metrics.ratioMean - 1) < 1e-5, JSON.stringify(metrics));
  const gradientOf = async (given: readonly TrainSample[], temperature: number): Promise<Float32Array> => {
    await trainer.trainStep(given, { ...options, temperature, learningRate: 0 });
    return trainer.gradient.flat.slice();
  };
  const whole = await gradientOf(mixed, 1);
  const counts = rows.map((sampled) => sampled.flatMap(({ lossMask }) => lossMask).filter((mask) => mask === 1).length);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const parts: Float32Array[] = [];
  for (const temperature of temperatures) parts.push(await gradientOf(await sampledBatch(temperature), temperature));
  const most = whole.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  whole.forEach((value, w) => {
    const sum = parts.reduce((all, part, i) => all + (part[w]! * counts[i]!) / total, 0);
    assert.ok(Math.abs(value - sum) < 1e-4 * most, `element ${w}: ${value} against ${sum}`);
  });
});

for (const temperature of [1, 0.6, 1.7]) {
  test(`the trainer and the sampler agree on logprobs at temperature ${temperature}`, async () => {
    const samples = await sampledBatch(temperature);
    const scored = await trainer.forwardLogprobs(samples, { temperature });
    samples.forEach((sample, row) => {
      sample.behaviorLogprobs.forEach((logprob, t) => assert.ok(Math.abs(logprob - scored[row]![t]!) < 1e-4));
    });
    const { metrics } = await trainer.trainStep(samples, { ...options, temperature, learningRate: 0 });
    assert.ok(metrics.maxLogprobDifference < 1e-4 && metrics.mismatchKl < 1e-6);
    assert.ok(Math.abs(metrics.ratioMean - 1) < 1e-5 && metrics.clipFraction === 0);
  });
}

test('a step is the same whatever the order of its rows, and the same again', async () => {
  const results: StepResult<TrainMetrics>[] = [];
  const digests: string[] = [];
  for (let i = 0; i < 2; i++) {
    const fresh = await open();
    results.push(await fresh.trainStep(batch, options));
    digests.push(await fresh.digest());
    await fresh.close();
  }
  assert.deepEqual(results[0], results[1]);
  assert.equal(digests[0], digests[1]);
  assert.notEqual(digests[0], await trainer.digest());
});

test('gradients of micro-batches add up to the gradient of the batch', async () => {
  const whole = await gradientOf(options);
  for (const microBatchPositions of [20, 60, 100]) {
    const parts = await gradientOf({ ...options, microBatchPositions });
    const largest = whole.gradient.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    whole.gradient.forEach((value, i) => assert.ok(Math.abs(value - parts.gradient[i]!) < 1e-5 * largest));
    assert.ok(Math.abs(whole.metrics.loss - parts.metrics.loss) < 1e-6);
    assert.ok(Math.abs(whole.metrics.entropy - parts.metrics.entropy) < 1e-5);
    assert.equal(whole.metrics.clipFraction, parts.metrics.clipFraction);
  }
});

test('rows without loss, and rows padded by others, change nothing', async () => {
  const whole = await gradientOf(options);
  const idle = batch.slice(0, 5).map((sample) => ({ ...sample, lossMask: sample.lossMask.map(() => 0) }));
  assert.deepEqual(await gradientOf(options, [...idle, ...batch]), whole);
  const order = permutation(batch.length, 'rows');
  const moved = await gradientOf(
    options,
    order.map((i) => batch[i]!),
  );
  assert.ok(Math.abs(moved.metrics.gradNorm - whole.metrics.gradNorm) < 1e-5);
});

async function gradientOf(
  over: TrainOptions,
  samples: readonly TrainSample[] = batch,
): Promise<{ gradient: Float32Array; metrics: TrainMetrics }> {
  const { metrics } = await trainer.trainStep(samples, { ...over, learningRate: 0 });
  return { gradient: trainer.gradient.flat.slice(), metrics };
}

test('training continues bit for bit from saved weights and optimizer state', async (t) => {
  const folder = await temporaryFolder(t);
  const undisturbed = await open();
  const steps = Array.from({ length: 4 }, (_, i) => randomBatch(trainer.model.config, 8, i));
  for (const step of steps.slice(0, 2)) await undisturbed.trainStep(step, options);
  const digest = await undisturbed.exportWeights(folder);
  const state = await undisturbed.saveState();
  for (const step of steps.slice(2)) await undisturbed.trainStep(step, options);

  const resumed = await EngineOptimizer.open(folder, { threads: 1 });
  assert.equal(await resumed.digest(), digest);
  await resumed.restoreState(state);
  for (const step of steps.slice(2)) await resumed.trainStep(step, options);
  assert.equal(await resumed.digest(), await undisturbed.digest());
  assert.deepEqual(await resumed.saveState(), await undisturbed.saveState());

  await undisturbed.loadWeights(folder);
  await undisturbed.resetMoments();
  assert.equal(await undisturbed.digest(), digest);
  await undisturbed.trainStep(steps[2]!, options);
  assert.notEqual(await undisturbed.digest(), await resumed.digest());
  await resumed.close();
  await undisturbed.close();
});

test('an exported folder is complete and leaves nothing else behind', async (t) => {
  const folder = join(await temporaryFolder(t), 'version');
  const digest = await trainer.exportWeights(folder);
  assert.equal(await trainer.exportWeights(folder), digest);
  assert.equal((await loadModelFolder(folder)).parameters.digest(), digest);
  assert.deepEqual(
    (await readdir(folder)).filter((name) => name.endsWith('.tmp')),
    [],
  );
});

test('damaged optimizer state is refused and changes nothing', async () => {
  const fresh = await open();
  await fresh.trainStep(batch, options);
  const state = await fresh.saveState();
  await assert.rejects(fresh.restoreState(state.slice(0, -1)), { code: 'CheckpointDamaged' });
  await assert.rejects(fresh.restoreState(new Uint8Array(0)), { code: 'CheckpointDamaged' });
  assert.deepEqual(await fresh.saveState(), state);
  await fresh.close();
});

test('a loss or gradient that is not finite is refused: nothing is applied', async () => {
  const fresh = await open();
  const before = [await fresh.digest(), await fresh.saveState()];
  const poisoned = batch.map((sample) => ({ ...sample, advantages: sample.advantages.map(() => Infinity) }));
  const result = await fresh.trainStep(poisoned, options);
  assert.ok(!result.applied && /loss is/.test(result.reason));
  const empty = await fresh.sftStep([{ tokenIds: [3, 4], lossMask: [0, 0] }], options);
  assert.ok(!empty.applied && /no token/.test(empty.reason));
  assert.ok(!(await fresh.trainStep([], options)).applied);
  assert.deepEqual([await fresh.digest(), await fresh.saveState()], before);
  await fresh.close();
});

test('the KL term pulls towards the reference and is reported without being added', async (t) => {
  const folder = await temporaryFolder(t);
  const fresh = await open();
  await fresh.exportWeights(folder);
  for (let i = 0; i < 3; i++) await fresh.trainStep(batch, { ...options, learningRate: 1e-2 });
  const referenceLogprobs = await fresh.forwardLogprobs(batch, { temperature: 1, weights: folder });
  const klOnly = batch.map((sample) => ({ ...sample, advantages: sample.advantages.map(() => 0) }));
  const reported = await fresh.trainStep(klOnly, { ...options, learningRate: 0, referenceLogprobs });
  assert.ok(reported.metrics.loss === 0 && reported.metrics.klDivergence! > 1e-3);
  const penalized = { ...options, learningRate: 1e-3, klBeta: 1, referenceLogprobs };
  const first = await fresh.trainStep(klOnly, penalized);
  assert.ok(Math.abs(first.metrics.loss - first.metrics.klDivergence!) < 1e-6);
  for (let i = 0; i < 10; i++) await fresh.trainStep(klOnly, penalized);
  const last = await fresh.trainStep(klOnly, penalized);
  assert.ok(last.metrics.klDivergence! < 0.5 * first.metrics.klDivergence!);
  await assert.rejects(fresh.trainStep(batch, { ...options, klBeta: 1 }), { code: 'Unsupported' });
  await fresh.close();
});

test('supervised training lowers the loss', async () => {
  const fresh = await open();
  const samples = batch.map(({ tokenIds, lossMask }) => ({ tokenIds, lossMask }));
  const losses: number[] = [];
  for (let i = 0; i < 20; i++)
    losses.push((await fresh.sftStep(samples, { learningRate: 3e-3, optimizer })).metrics.loss);
  assert.ok(losses.at(-1)! < 0.7 * losses[0]!);
  await fresh.close();
});

test('a malformed batch is refused with the row at fault', async () => {
  const [sample] = batch;
  const refuses = (change: Partial<TrainSample>, message: RegExp): Promise<void> =>
    assert.rejects(trainer.trainStep([{ ...sample!, ...change }], options), {
      code: 'Unsupported',
      message,
    });
  await refuses({ lossMask: [0] }, /as many mask values/);
  await refuses({ advantages: [] }, /advantages in row 0, one per token, got 0/);
  await refuses({ behaviorLogprobs: [1] }, /behaviour logprobs/);
  await refuses({ tokenIds: sample!.tokenIds.map(() => 30) }, /token ids below 30/);
  await refuses({ lossMask: sample!.lossMask.map(() => 1) }, /mask of 0 at position 0/);
});
