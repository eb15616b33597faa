import assert from 'node:assert/strict';
import { test } from 'node:test';
import { numpyPermutation } from '../../core/numpy-shuffle.ts';

/** Recorded from numpy 2.4.6: `numpy.random.default_rng(seed).permutation(count).tolist()`. */
const recorded = [
  { count: 1, seed: 0, order: [0] },
  { count: 2, seed: 0, order: [0, 1] },
  { count: 7, seed: 0, order: [2, 4, 3, 6, 5, 0, 1] },
  { count: 7, seed: 1, order: [5, 0, 1, 4, 2, 6, 3] },
  { count: 10, seed: 42, order: [5, 6, 0, 7, 3, 2, 4, 9, 1, 8] },
  {
    count: 33,
    seed: 8589934597,
    order: [
      5, 16, 3, 29, 25, 13, 4, 28, 21, 2, 6, 10, 24, 12, 8, 20, 27, 22, 18, 1, 31, 0, 19, 30, 15, 7, 9, 32, 11, 17, 26,
      23, 14,
    ],
  },
  {
    count: 70,
    seed: 3,
    order: [
      0, 41, 48, 60, 38, 18, 2, 30, 37, 52, 4, 25, 3, 46, 17, 67, 22, 28, 51, 56, 61, 42, 35, 23, 66, 31, 65, 39, 11,
      69, 44, 62, 43, 53, 68, 12, 1, 13, 21, 20, 24, 15, 32, 55, 64, 10, 58, 47, 49, 63, 40, 45, 27, 29, 8, 9, 50, 6,
      33, 26, 34, 59, 7, 16, 14, 57, 36, 54, 5, 19,
    ],
  },
];

test('rows are shuffled as numpy shuffles them', () => {
  for (const { count, seed, order } of recorded)
    assert.deepEqual(numpyPermutation(count, seed), order, `${count}, ${seed}`);
});

test('a permutation has every number once', () => {
  const order = numpyPermutation(1000, 12_345);
  assert.deepEqual(
    order.toSorted((a, b) => a - b),
    Array.from({ length: 1000 }, (_, i) => i),
  );
});
