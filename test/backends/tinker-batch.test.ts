import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gradientBatch } from '../../backends/tinker/batch.ts';
import { factsOf } from '../../core/rl/learning/batch.ts';
import type { Datum } from '../../backends/tinker/types.ts';

const samples = [
  { tokenIds: [1, 2, 3], lossMask: [0, 1, 1] },
  { tokenIds: [4, 5], lossMask: [0, 0] },
  { tokenIds: [6, 7, 8, 9], lossMask: [0, 0, 0.5, 1] },
].map((row) => ({ ...row, behaviorLogprobs: row.lossMask.map(() => -1), advantages: row.lossMask.map(() => 1) }));
const gradients = [
  [0, 0.25, -1],
  [0, 0],
  [0, 0, -0.5, 2],
];

/** ∂L/∂ℓ of the linear loss that was asked for, by what a server of each reduction does with a datum. */
const slopes = {
  sum: ({ inputs }: Datum) => inputs['weights']!.data.map((weight) => 0 - weight),
  sequence_mean({ inputs }: Datum, rows: number) {
    const weights = inputs['weights']!.data;
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return weights.map((weight, t) => 0 - (weight * inputs['advantages']!.data[t]!) / total / rows);
  },
};

for (const reduction of ['sum', 'sequence_mean'] as const) {
  test(`a loss that is sent as its gradient has that gradient, where a server takes the ${reduction}`, () => {
    const { datum, rows, loss } = gradientBatch(samples.map(factsOf), gradients, reduction);
    const data = rows.map((row, place) => datum(samples[row]!, place));
    assert.deepEqual(rows, [0, 2], 'rows without loss are left out');
    assert.equal(loss.lossFn, reduction === 'sum' ? 'cross_entropy' : 'cispo');
    data.forEach((datum, i) => assert.deepEqual(slopes[reduction](datum, data.length), gradients[rows[i]!]!.slice(1)));
  });
}
