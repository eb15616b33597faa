/** The trainer's values for each token, kept beside the rollouts for people to look at. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PackedRow } from '../../core/rl/learning/batch.ts';
import { rowsOf, scoredRows } from '../../core/rl/learning/batch.ts';
import { tokenScoresMax } from '../../core/limits.ts';
import { layout } from '../../runs/layout.ts';
import { putTokenScores, readTokenScores } from '../../runs/rollouts/token-scores.ts';
import { makeRun } from '../activities/runs.ts';

const row = (first: number, length: number): PackedRow => ({
  tokenIds: Array.from({ length }, (_, i) => first + i),
  lossMask: Array.from({ length }, (_, i) => (i > 1 && i !== 3 ? 1 : 0)),
  advantages: Array.from({ length }, () => 0),
});

test('scores of tokens that count are found by a row’s tokens, the same after they were written again; damage is named', async (t) => {
  const { run, store } = await makeRun(t);
  const rows = [row(10, 6), row(20, 9), row(30, 4)];
  const of = (value: (id: number) => number) => rows.map(({ tokenIds }) => Float32Array.from(tokenIds, value));
  const logprobs = of((id) => (id >= 30 ? 0 : -id / 10)); // the last row was not computed
  const write = () => putTokenScores(run, 3, rowsOf(rows), { logprobs, entropies: of((id) => id / 7) });
  await write();
  const keys = await store.list(layout.allTokenScores('main'));
  const bytes = await store.read(keys[0]!);
  await write();
  assert.deepEqual(await store.list(layout.allTokenScores('main')), keys);
  assert.deepEqual(await store.read(keys[0]!), bytes);

  const scoresOf = await readTokenScores(run, 3);
  const floats = (values: readonly number[]): Float32Array => Float32Array.from(values);
  const found = scoresOf(rows[0]!.tokenIds)!;
  assert.deepEqual(found.logprobs, floats([-1.2, -1.4, -1.5]));
  assert.deepEqual(found.entropies, floats([12 / 7, 14 / 7, 15 / 7]));
  assert.equal(scoresOf(rows[1]!.tokenIds)!.logprobs.length, 6);
  assert.equal(scoresOf(rows[2]!.tokenIds), null);
  assert.equal(scoresOf([1, 2, 3]), null);
  assert.equal((await readTokenScores(run, 4))(rows[0]!.tokenIds), null);

  await store.put(keys[0]!, bytes!.subarray(0, bytes!.length - 8));
  await assert.rejects(readTokenScores(run, 3), { code: 'CheckpointDamaged' });
});

test('a trainer that tells no entropies has log probabilities alone', async (t) => {
  const { run } = await makeRun(t);
  const rows = [row(10, 6)];
  const logprobs = rows.map(({ tokenIds }) => Float32Array.from(tokenIds, (id) => -id));
  await putTokenScores(run, 1, rowsOf(rows), { logprobs, entropies: null });
  assert.equal((await readTokenScores(run, 1))(rows[0]!.tokenIds)!.entropies, null);
});

test('of a large batch the first rows are kept, up to the bound; a trainer need not hold the others', async (t) => {
  const { run, store } = await makeRun(t);
  const half = tokenScoresMax / 2;
  const facts = [half, half, 1].map((counted) => ({ tokens: counted + 1, counted, weight: counted }));
  assert.deepEqual([scoredRows(facts), scoredRows(facts.slice(0, 2)), scoredRows([])], [2, 2, 0]);
  const rows = [row(10, 6), row(20, 9)];
  const tooMany = { tokens: 9, counted: tokenScoresMax, weight: 6 };
  const batch = { ...rowsOf(rows), rows: [rowsOf(rows).rows[0]!, tooMany] };
  const logprobs = [Float32Array.from(rows[0]!.tokenIds, (id) => -id), new Float32Array()];
  await putTokenScores(run, 1, batch, { logprobs, entropies: null });
  const scoresOf = await readTokenScores(run, 1);
  assert.equal(scoresOf(rows[0]!.tokenIds)!.logprobs.length, 3);
  assert.equal(scoresOf(rows[1]!.tokenIds), null);
  assert.equal((await store.list(layout.allTokenScores('main'))).length, 1);
});
