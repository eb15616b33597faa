import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { TrainSample } from '../../../core/rl/learning/batch.ts';
import { packSequences } from '../../../core/rl/learning/sequences.ts';

/** A sample of so many predictions, the last `learned` of which count; its tokens are the number of its row. */
function sample(row: number, predictions: number, learned = 1): TrainSample {
  const tokenIds = Array.from({ length: predictions + 1 }, () => row);
  const zeros = tokenIds.map(() => 0);
  const lossMask = tokenIds.map((_, i) => (i > predictions - learned ? 1 : 0));
  return { tokenIds, lossMask, behaviorLogprobs: zeros, advantages: zeros };
}

const start = { row: 0, sample: 0 };

/** Rows of such lengths, over and over. */
function packed(lengths: readonly number[], { count = 2, seqLen = 10, from = start, learned = 1 } = {}) {
  const rowsMax = lengths.length;
  const found = packSequences((row) => [sample(row, lengths[row % rowsMax]!, learned)], {
    from,
    count,
    seqLen,
    rowsMax,
  });
  return found && { ...found, rows: found.rows.map((row) => [row.sequence, row.sample.tokenIds[0]]) };
}

describe('sequences of rows', () => {
  test('rows follow one another while they fit, and one that does not begins the next sequence', () => {
    const { rows, next } = packed([4, 5, 3, 6])!;
    assert.deepEqual(rows, [
      [0, 0],
      [0, 1],
      [1, 2],
      [1, 3],
    ]);
    assert.deepEqual(next, { row: 4, sample: 0 });
  });

  test('a step goes on with the row that the one before had no room for, into the next pass', () => {
    const lengths = [4, 5, 3];
    const first = packed(lengths, { count: 1 })!;
    assert.deepEqual(first.next, { row: 2, sample: 0 });
    const second = packed(lengths, { count: 1, from: first.next })!;
    assert.deepEqual(second.rows, [
      [0, 2],
      [0, 3],
    ]);
    assert.deepEqual(second.next, { row: 4, sample: 0 });
  });

  test('a row that is longer than a sequence is cut to it, and has one to itself', () => {
    const found = packSequences((row) => [sample(row, row === 0 ? 25 : 4, 20)], {
      from: start,
      count: 2,
      seqLen: 10,
      rowsMax: 3,
    })!;
    assert.deepEqual(
      found.rows.map(({ sample: { tokenIds, lossMask } }) => [tokenIds.length, lossMask.length]),
      [
        [11, 11],
        [5, 5],
        [5, 5],
      ],
    );
    assert.equal(found.cut, 1);
  });

  test('a row of which nothing is learned before the end of a sequence is left out', () => {
    const { rows, skipped } = packed([25, 4, 4], { count: 1 })!;
    assert.deepEqual([rows.map(([, row]) => row), skipped], [[1, 2], 2]);
    assert.equal(packed([25, 30], { count: 1 }), null);
  });

  test('of a row that gives several samples those are next that are left', () => {
    const twice = (row: number): TrainSample[] => [sample(row, 6), sample(row, 7)];
    const options = { count: 1, seqLen: 10, rowsMax: 2 };
    const first = packSequences(twice, { from: start, ...options })!;
    assert.deepEqual([first.rows.length, first.next], [1, { row: 0, sample: 1 }]);
    const second = packSequences(twice, { from: first.next, ...options })!;
    assert.deepEqual([second.rows.map((row) => row.sample.tokenIds.length), second.next], [[8], { row: 1, sample: 0 }]);
  });
});
