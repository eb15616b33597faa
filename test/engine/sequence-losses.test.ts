/** Losses whose weight is not a token's own: gspo, whose ratio is a row's, and the lead of a teacher. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { randomStream } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { EngineOptimizer, type TrainMetrics, type TrainOptions } from '../../engine/index.ts';
import { optimizer, randomBatch } from './models.ts';

const temperature = 0.9;
const trainer = await EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3 });
after(() => trainer.close());
const drawn = randomBatch(trainer.model.config, 24, 1);
const current = await trainer.forwardLogprobs(drawn, { temperature });
/** Rows with ratios on both sides of the bounds below, and advantages of both signs. */
const batch: readonly TrainSample[] = drawn.map((row, r) => ({
  ...row,
  behaviorLogprobs: row.lossMask.map((mask, t) =>
    mask === 0 ? 0 : current[r]![t]! - [0.3, -0.3, 0.01, -0.01][r % 4]! + 0.2 * Math.sin(t),
  ),
}));
const bounds = { clipLow: 0.9, clipHigh: 1.15 };
const gspo: LossSettings = { type: 'gspo', ...bounds, aggregation: 'sequence' };
const options = { learningRate: 0, optimizer, temperature, klBeta: 0 };

async function gradientOf(
  over: Partial<TrainOptions> & Pick<TrainOptions, 'loss'>,
  rows: readonly TrainSample[] = batch,
  by: EngineOptimizer = trainer,
): Promise<{ gradient: Float32Array; metrics: TrainMetrics }> {
  const { metrics } = await by.trainStep(rows, { ...options, ...over });
  return { gradient: by.gradient.flat.slice(), metrics };
}

function requireSame(actual: Float32Array, expected: Float32Array): void {
  const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  assert.ok(largest > 0);
  expected.forEach((value, i) => assert.ok(Math.abs(value - actual[i]!) < 1e-5 * largest, `element ${i}`));
}

/** GSPO's objective as the paper writes it (eq. 5 and 7), negated, in double precision. */
function objective(logprobs: readonly ArrayLike<number>[]): number {
  let total = 0;
  for (const [r, row] of batch.entries()) {
    const counted = row.lossMask.flatMap((mask, t) => (mask === 1 ? [t] : []));
    const mean = counted.reduce((sum, t) => sum + logprobs[r]![t]! - row.behaviorLogprobs[t]!, 0) / counted.length;
    const [ratio, advantage] = [Math.exp(mean), row.advantages[counted[0]!]!];
    const clipped = Math.min(Math.max(ratio, bounds.clipLow), bounds.clipHigh);
    total -= Math.min(ratio * advantage, clipped * advantage);
  }
  return total / batch.length;
}

describe('gspo', () => {
  test('is the objective of the paper, and its gradient the slope of that', async () => {
    const { gradient, metrics } = await gradientOf({ loss: gspo });
    const here = objective(current);
    assert.ok(Math.abs(metrics.loss - here) < 1e-5, `${metrics.loss} against ${here}`);
    const { parameters } = trainer.model;
    const before = parameters.flat.slice();
    for (const seed of [1, 2, 3]) {
      const random = randomStream('direction', seed);
      // Along the gradient with some of another direction: a slope that rounding does not hide.
      const norm = Math.sqrt(gradient.reduce((sum, value) => sum + value * value, 0));
      const direction = gradient.map((value) => value / norm + 0.002 * (random() - 0.5));
      const at = async (scale: number): Promise<number> => {
        parameters.flat.forEach((_, i) => (parameters.flat[i] = before[i]! + scale * direction[i]!));
        parameters.changed();
        return objective(await trainer.forwardLogprobs(batch, { temperature }));
      };
      const h = 2e-3;
      const slope = ((await at(h)) - (await at(-h))) / (2 * h);
      parameters.flat.set(before);
      parameters.changed();
      const expected = direction.reduce((sum, value, i) => sum + value * gradient[i]!, 0);
      assert.ok(Math.abs(slope - expected) < 5e-3 * Math.abs(expected), `${slope} against ${expected}`);
    }
  });

  test('rows are cut whole, at both bounds, in the direction that their advantage pushes them', async () => {
    const { metrics } = await gradientOf({ loss: gspo });
    const tokens = { low: 0, high: 0, all: 0 };
    for (const [r, row] of batch.entries()) {
      const counted = row.lossMask.flatMap((mask, t) => (mask === 1 ? [t] : []));
      const mean = counted.reduce((sum, t) => sum + current[r]![t]! - row.behaviorLogprobs[t]!, 0) / counted.length;
      const advantage = row.advantages[counted[0]!]!;
      tokens.all += counted.length;
      if (Math.exp(mean) > bounds.clipHigh && advantage > 0) tokens.high += counted.length;
      if (Math.exp(mean) < bounds.clipLow && advantage < 0) tokens.low += counted.length;
    }
    assert.ok(tokens.low > 0 && tokens.high > 0);
    assert.ok(Math.abs(metrics.clipFractionLow - tokens.low / tokens.all) < 1e-6);
    assert.ok(Math.abs(metrics.clipFractionHigh - tokens.high / tokens.all) < 1e-6);
  });

  test('the gradient does not depend on the cut into micro-batches, nor on how many logits are held at once', async () => {
    for (const aggregation of ['sequence', 'token'] as const) {
      const loss = { ...gspo, aggregation };
      const whole = await gradientOf({ loss });
      for (const cut of [{ microBatchRows: 1 }, { microBatchRows: 7 }, { microBatchPositions: 30 }]) {
        requireSame((await gradientOf({ loss, ...cut })).gradient, whole.gradient);
      }
      const { vocabularySize } = trainer.model.config;
      const seed = 3;
      const parts = await EngineOptimizer.open('preset:reverse-text-0.2m', {
        threads: 1,
        seed,
        logitsMax: 3 * vocabularySize,
      });
      const inParts = await gradientOf({ loss }, batch, parts);
      requireSame(inParts.gradient, whole.gradient);
      assert.ok(Math.abs(inParts.metrics.loss - whole.metrics.loss) < 1e-5);
      await parts.close();
    }
  });

  test('rows of one token are those of grpo', async () => {
    const short = batch.map((row) => ({ ...row, lossMask: row.lossMask.map((_, t) => Number(t === 2)) }));
    const grpo = await gradientOf({ loss: { ...gspo, type: 'grpo' } }, short);
    requireSame((await gradientOf({ loss: gspo }, short)).gradient, grpo.gradient);
  });
});

describe('a teacher', () => {
  const taught = batch.map((row, r) => ({
    ...row,
    teacherLogprobs: row.lossMask.map((mask, t) => (mask === 0 ? 0 : current[r]![t]! + Math.sin(r + t))),
  }));
  const loss: LossSettings = { type: 'ipo', clipHigh: 1, maskLow: 0.02, klTau: 0.1, aggregation: 'token' };

  test('stands for the advantage by its lead over the policy, and beside it as the weights say', async () => {
    for (const [advantageTau, teacherTau] of [
      [0, 1],
      [0.5, 2],
    ] as const) {
      const byHand = taught.map((row, r) => ({
        ...row,
        advantages: row.advantages.map((advantage, t) =>
          row.lossMask[t] === 0
            ? 0
            : advantageTau * advantage + teacherTau * (row.teacherLogprobs[t]! - current[r]![t]!),
        ),
      }));
      const actual = await gradientOf({ loss: { ...loss, advantageTau, teacherTau } }, taught);
      requireSame(actual.gradient, (await gradientOf({ loss }, byHand)).gradient);
    }
  });

  test('a batch without its log probabilities is refused', async () => {
    await assert.rejects(gradientOf({ loss: { ...loss, teacherTau: 1 } }), /teacher logprobs in row 0/);
  });

  test('gives prime-rl’s ref_kl loss of a token: none where its probability fell by more than 0.2', async () => {
    // Computed by hand: A = log π_T − ℓ, −ρ·A + 0.001·d², kept unless π − μ < −0.2.
    const expected = taught.flatMap((row, r) =>
      row.lossMask.flatMap((mask, t) => {
        if (mask === 0) return [];
        const [l, mu] = [current[r]![t]!, row.behaviorLogprobs[t]!];
        const kept = Math.exp(l) - Math.exp(mu) < -0.2 ? 0 : 1;
        return [-kept * (row.teacherLogprobs[t]! - l) * Math.exp(l - mu) + 1e-3 * (l - mu) ** 2];
      }),
    );
    const opd = { ...loss, maskLow: 0.2, maskHigh: null, klTau: 1e-3, advantageTau: 0, teacherTau: 1 };
    const { metrics } = await gradientOf({ loss: opd }, taught);
    const mean = expected.reduce((sum, value) => sum + value, 0) / expected.length;
    assert.ok(Math.abs(metrics.loss - mean) < 1e-5, `${metrics.loss} against ${mean}`);
  });
});

test('mini-batches of a step are steps of their own, one after the other, with the log probabilities of before', async () => {
  const grpo: LossSettings = { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'sequence' };
  const open = () => EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3 });
  const taken = { ...options, learningRate: 1e-3, loss: grpo };
  const [together, apart] = [await open(), await open()];
  const step = await together.trainStep(batch, { ...taken, miniBatches: 3 });
  assert.ok(step.applied);
  for (const first of [0, 8, 16]) assert.ok((await apart.trainStep(batch.slice(first, first + 8), taken)).applied);
  assert.equal(await together.digest(), await apart.digest());
  await together.close();
  await apart.close();
});
