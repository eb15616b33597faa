import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { permutation, randomStream } from '../../../core/random.ts';
import {
  decideRung,
  narrowlyDropped,
  rungSteps,
  stepsOf,
  survivorsOf,
  type RungResult,
} from '../../../core/sweep/halving.ts';
import { describeRow, rowsOfGrid, sweepRuns } from '../../../core/sweep/table.ts';

const seedless = (...values: readonly (number | null)[]): RungResult[] =>
  values.map((value, row) => ({ row, seed: null, value }));

describe('the table of a sweep', () => {
  test('is every combination of the values, the last setting fastest', () => {
    assert.deepEqual(rowsOfGrid({ a: [1, 2], 'b.c': ['x', 'y'] }), [
      { a: 1, 'b.c': 'x' },
      { a: 1, 'b.c': 'y' },
      { a: 2, 'b.c': 'x' },
      { a: 2, 'b.c': 'y' },
    ]);
    assert.deepEqual(rowsOfGrid({}), [{}]);
  });

  test('becomes runs by row and seed, with settings as they are typed', () => {
    const runs = sweepRuns('lr', [{ a: 1e-4 }, { a: 2, text: 'x y', list: [1, 2] }], [7, 8]);
    assert.deepEqual(
      runs.map(({ name }) => name),
      ['lr-01-s7', 'lr-01-s8', 'lr-02-s7', 'lr-02-s8'],
    );
    assert.deepEqual(runs[3], {
      name: 'lr-02-s8',
      row: 1,
      seed: 8,
      overrides: { a: '2', text: '"x y"', list: '[1,2]', seed: '8' },
    });
    assert.deepEqual(sweepRuns('lr', [{}], []), [{ name: 'lr-01', row: 0, seed: null, overrides: {} }]);
    assert.equal(describeRow({ a: 1, b: 'x' }), 'a 1, b x');
    assert.equal(describeRow({}), 'as in the file');
  });
});

describe('rungs', () => {
  test('end with the run, each with eta times the steps of the one before', () => {
    const of = (rungs: number | null, minSteps: number | null, maxSteps = 90) =>
      rungSteps(maxSteps, { eta: 3, rungs, minSteps });
    assert.deepEqual(of(3, null), [10, 30, 90]);
    assert.deepEqual(of(1, null), [90]);
    assert.deepEqual(of(null, 10), [10, 30, 90]);
    assert.deepEqual(of(null, 20), [20, 60, 90]);
    assert.deepEqual(of(2, 10), [10, 90]);
    assert.deepEqual(of(null, 90), [90]);
    assert.deepEqual(of(9, null, 4), [1, 2, 4]);
    assert.deepEqual(rungSteps(90, null), [90]);
  });

  test('cost what is trained between them', () => {
    // 27 rows: 27 × 10 + 9 × 20 + 3 × 60 = 630 of 2430.
    assert.deepEqual(stepsOf(27, 1, { steps: [10, 30, 90], eta: 3 }), { halved: 630, full: 2430 });
    assert.deepEqual(stepsOf(4, 2, { steps: [90], eta: null }), { halved: 720, full: 720 });
  });
});

describe('a rung', () => {
  test('keeps the best of eta, by the mean over seeds', () => {
    const results = [
      { row: 0, seed: 1, value: 0.9 },
      { row: 0, seed: 2, value: 0.1 },
      { row: 1, seed: 1, value: 0.6 },
      { row: 1, seed: 2, value: 0.6 },
      { row: 2, seed: 1, value: 0.4 },
      { row: 2, seed: 2, value: 0.4 },
    ];
    const { ranking, survivors } = decideRung(results, 'max', 3);
    assert.deepEqual(survivors, [1]);
    assert.deepEqual(
      ranking.map(({ row }) => row),
      [1, 0, 2],
    );
    assert.equal(ranking[1]!.mean, 0.5);
    assert.ok(Math.abs(ranking[1]!.standardError! - 0.4) < 1e-12);
    assert.deepEqual(decideRung(results, 'min', 3).survivors, [2]);
  });

  test('prefers the earlier of equal rows', () => {
    assert.deepEqual(decideRung(seedless(0.5, 0.5, 0.5, 0.5), 'max', 2).survivors, [0, 1]);
  });

  test('ranks a row that lacks a seed after all complete ones, and drops one without a metric', () => {
    const results = [
      { row: 0, seed: 1, value: 1 },
      { row: 0, seed: 2, value: null },
      { row: 1, seed: 1, value: 0.1 },
      { row: 1, seed: 2, value: 0.1 },
      { row: 2, seed: 1, value: Number.NaN },
      { row: 2, seed: 2, value: null },
    ];
    const { ranking, survivors } = decideRung(results, 'max', 1);
    assert.deepEqual(
      ranking.map(({ row }) => row),
      [1, 0, 2],
    );
    assert.deepEqual(survivors, [0, 1]);
    assert.deepEqual(decideRung(seedless(null, null), 'max', 2).survivors, []);
  });

  test('says which rows it dropped by less than the standard error of the difference', () => {
    // Standard errors of 0.1 each: 0.141 of a difference.
    const pairs = [1, 0.9, 0.85, 0.7].flatMap((mean, row) => [
      { row, seed: 1, value: mean - 0.1 },
      { row, seed: 2, value: mean + 0.1 },
    ]);
    assert.deepEqual(narrowlyDropped(decideRung(pairs, 'max', 4)), [1]);
    assert.deepEqual(narrowlyDropped(decideRung(pairs, 'max', 2)), [2]);
    assert.deepEqual(narrowlyDropped(decideRung(pairs, 'min', 4)), []);
    assert.deepEqual(narrowlyDropped(decideRung(pairs, 'max', null)), []);
    // One seed says nothing of chance, and a row that lacks a seed is behind the others for that.
    assert.deepEqual(narrowlyDropped(decideRung(seedless(0.5, 0.5), 'max', 2)), []);
    const lacking = pairs.map((one) => (one.row === 1 && one.seed === 1 ? { ...one, value: null } : one));
    assert.deepEqual(narrowlyDropped(decideRung(lacking, 'max', 4)), []);
  });

  test('never drops the best, keeps one of eta, and decides the same in whatever order results come', () => {
    const random = randomStream('rungs of a sweep');
    for (let round = 0; round < 500; round++) {
      const rows = 1 + Math.floor(random() * 30);
      const seeds = 1 + Math.floor(random() * 3);
      const eta = 2 + Math.floor(random() * 3);
      const goal = random() < 0.5 ? 'max' : 'min';
      const isWhole = random() < 0.5;
      const results: RungResult[] = [];
      for (let row = 0; row < rows; row++)
        for (let seed = 0; seed < seeds; seed++) {
          const value = !isWhole && random() < 0.2 ? null : Math.round(random() * 10) / 7;
          results.push({ row, seed, value });
        }
      const decided = decideRung(results, goal, eta);
      const shuffled = permutation(results.length, 'order', round).map((i) => results[i]!);
      assert.deepEqual(decideRung(shuffled, goal, eta), decided);
      const withMetric = decided.ranking.filter(({ mean }) => mean !== null).length;
      assert.equal(decided.survivors.length, Math.min(survivorsOf(rows, eta), withMetric));
      const complete = decided.ranking.filter((standing) => standing.seeds === standing.of);
      if (complete.length === 0) continue;
      const means = complete.map(({ mean }) => mean!);
      const bestMean = goal === 'max' ? Math.max(...means) : Math.min(...means);
      const best = complete.filter(({ mean }) => mean === bestMean).map(({ row }) => row);
      assert.ok(decided.survivors.includes(Math.min(...best)));
    }
  });
});
