import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gradientBatch, inRequests } from '../../backends/tinker/batch.ts';
import { lossBy } from '../../backends/tinker/server-facts.ts';
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

/** ∂L/∂ℓ of the linear loss that was asked for, by what a server of each reduction does with the data of its scope. */
const slopes = {
  sum: ({ inputs }: Datum) => inputs['weights']!.data.map((weight) => 0 - weight),
  row_mean: ({ inputs }: Datum, among: readonly Datum[]) =>
    inputs['weights']!.data.map((weight) => 0 - weight / among.length),
  token_mean(datum: Datum, among: readonly Datum[]) {
    const all = among.reduce((sum, one) => sum + total(one), 0);
    return weighed(datum).map((weight) => 0 - weight / all);
  },
  sequence_mean(datum: Datum, among: readonly Datum[]) {
    const own = total(datum);
    return weighed(datum).map((weight) => 0 - weight / own / among.length);
  },
};

function weighed({ inputs }: Datum): number[] {
  return inputs['weights']!.data.map((weight, t) => weight * inputs['advantages']!.data[t]!);
}

function total({ inputs }: Datum): number {
  return inputs['weights']!.data.reduce((sum, weight) => sum + weight, 0);
}

function assertSlopes(found: readonly number[], expected: readonly number[]): void {
  assert.equal(found.length, expected.length);
  const off = found.findIndex((slope, t) => Math.abs(slope - expected[t]!) > 1e-12);
  assert.equal(off, -1, `${found[off]} is not ${expected[off]}`);
}

for (const reduction of ['sum', 'row_mean', 'token_mean', 'sequence_mean'] as const) {
  test(`a loss that is sent as its gradient has that gradient, where a server takes the ${reduction}`, () => {
    const server = lossBy(reduction);
    const { datum, rows, loss } = gradientBatch(samples.map(factsOf), gradients, server);
    const data = rows.map((row, place) => datum(samples[row]!, place));
    assert.deepEqual(rows, [0, 2], 'rows without loss are left out');
    assert.equal(loss.lossFn, server.linearIn === 'weights' ? 'cross_entropy' : 'cispo');
    data.forEach((one, i) => assertSlopes(slopes[reduction](one, data), gradients[rows[i]!]!.slice(1)));
  });

  test(`and in several requests, where it takes the ${reduction} of each request`, () => {
    const long = Array.from({ length: 3 }, (_, row) => {
      const tokenIds = Array.from({ length: 150_000 }, (_, t) => (t + row) % 7);
      const lossMask = tokenIds.map((_, t) => (t > 149_990 ? 1 : 0));
      return { tokenIds, lossMask, behaviorLogprobs: lossMask, advantages: lossMask };
    });
    const wanted = long.map(({ lossMask }, row) => lossMask.map((mask, t) => mask * (row + 1) * (t % 3)));
    const server = { ...lossBy(reduction), over: 'request' } as const;
    const { datum, rows } = gradientBatch(long.map(factsOf), wanted, server);
    const data = rows.map((row, place) => datum(long[row]!, place));
    const requests = inRequests(long.map(factsOf));
    assert.deepEqual(requests, [[0], [1], [2]]);
    for (const places of requests) {
      const among = places.map((place) => data[place]!);
      places.forEach((place, i) => assertSlopes(slopes[reduction](among[i]!, among), wanted[place]!.slice(1)));
    }
  });
}
