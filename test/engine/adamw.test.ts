import assert from 'node:assert/strict';
import { test } from 'node:test';
import { uniform } from '../../core/random.ts';
import { WeightUpdates } from '../../engine/train/updates/index.ts';

const optimizer = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0.1, maxGradNorm: 1 };

for (const length of [1, 5, 17, 600_001]) {
  test(`an update of ${length} weights is the formula's, whatever the threads`, async () => {
    const weights = [1, 2].map(() => new Float32Array(length).fill(0.5));
    const expected = new Float64Array(length).fill(0.5);
    const first = new Float64Array(length);
    const second = new Float64Array(length);
    const optimizers = [open(length, { threads: 1 }), open(length, { threads: 2 })];
    for (let step = 1; step <= 3; step++) {
      const gradient = Float32Array.from({ length }, (_, i) => uniform(7, step, i) - 0.4);
      const norm = Math.hypot(...Array.from({ length: 100 }, (_, i) => norms(gradient, i, 100)));
      for (const [i, adamw] of optimizers.entries()) {
        const measured = await adamw.globalNorm(gradient);
        assert.ok(Math.abs(measured - norm) <= 1e-6 * norm, `norm ${measured}, expected ${norm}`);
        await adamw.apply(weights[i]!, gradient, { norm: measured, learningRate: 0.01, optimizer });
      }
      const clip = Math.min(1, 1 / (norm + 1e-6));
      for (let i = 0; i < length; i++) {
        const g = clip * gradient[i]!;
        first[i] = 0.9 * first[i]! + 0.1 * g;
        second[i] = 0.98 * second[i]! + 0.02 * g * g;
        const root = Math.sqrt(second[i]! / (1 - 0.98 ** step)) + 1e-8;
        expected[i] = expected[i]! * (1 - 0.01 * 0.1) - (0.01 * (first[i]! / (1 - 0.9 ** step))) / root;
      }
    }
    await Promise.all(optimizers.map((adamw) => adamw.close()));
    assert.deepEqual(weights[0], weights[1]);
    const worst = expected.reduce((most, value, i) => Math.max(most, Math.abs(value - weights[0]![i]!)), 0);
    assert.ok(worst < 1e-5, `off by ${worst}`);
  });
}

test('a rate of 0, or too small for single precision, leaves every weight, whatever its gradient', async () => {
  for (const learningRate of [0, 1e-45, 1e-40, 3e-39, 1e-30]) {
    const adamw = open(3, { threads: 1 });
    const weights = Float32Array.of(0.5, -2, 3);
    await adamw.apply(weights, Float32Array.of(0, 1, -1), { norm: Math.SQRT2, learningRate, optimizer });
    await adamw.close();
    assert.deepEqual(weights, Float32Array.of(0.5, -2, 3), `rate ${learningRate}`);
  }
});

function open(length: number, options: { readonly threads: number }): WeightUpdates {
  return new WeightUpdates([{ name: 'weights', shape: [length], offset: 0, length }], options);
}

/** The norm of every `stride`-th element from `start` on. */
function norms(values: Float32Array, start: number, stride: number): number {
  let sum = 0;
  for (let i = start; i < values.length; i += stride) sum += values[i]! ** 2;
  return Math.sqrt(sum);
}
