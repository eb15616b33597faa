import assert from 'node:assert/strict';
import { test } from 'node:test';
import { miniBatches, rowsOf, type TrainSample } from '../../../core/rl/learning/batch.ts';

const row = (id: number, rollout?: TrainSample['rollout']): TrainSample => ({
  tokenIds: [0, id],
  lossMask: [0, 1],
  behaviorLogprobs: [0, 0],
  advantages: [0, 1],
  ...(rollout ? { rollout } : {}),
});
const read = (parts: ReturnType<typeof miniBatches>) =>
  Promise.all(parts.map(async (part) => [part.first, idsOf(await part.read([...part.rows.keys()]))]));
const idsOf = (samples: readonly TrainSample[]): number[] => samples.map(({ tokenIds }) => tokenIds[1]!);

test('a batch is cut into parts of as many rollouts, in order; never into more than it has', async () => {
  const samples = [1, 2, 3, 4, 5].map((id) => row(id));
  const cut = (count: number) => read(miniBatches(rowsOf(samples), count));
  assert.deepEqual(await cut(1), [[0, [1, 2, 3, 4, 5]]]);
  assert.deepEqual(await cut(2), [
    [0, [1, 2]],
    [2, [3, 4, 5]],
  ]);
  assert.equal((await cut(9)).length, 5);
});

test('rows of one rollout stay together, and each part counts its own rollouts', async () => {
  const rollouts = [0, 0, 2, 3, 3, 3]; // 1 and 4 have no row
  const samples = rollouts.map((index, id) => row(id, { index, of: 5 }));
  const parts = miniBatches(rowsOf(samples), 3);
  const expected = [
    [0, 0].map((index) => ({ index, of: 2 })),
    [{ index: 0, of: 1 }],
    [0, 0, 0].map((index) => ({ index, of: 2 })),
  ];
  assert.deepEqual(
    parts.map((part) => part.rows.map(({ rollout }) => rollout)),
    expected,
  );
  const [, , third] = parts;
  assert.deepEqual((await third!.read([1]))[0], row(4, { index: 0, of: 2 }));
});
