/** What halving makes of recorded curves: regret, by hand and over other seeds. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type RecordedCurves, readCurves, regretOf, resampledRegret } from '../../bench/sweep.ts';
import { rungSteps } from '../../core/sweep/halving.ts';

const halving = { eta: 2, rungs: 2, minSteps: null };
const usual = { eta: 3, rungs: 3, minSteps: null };

/** Two seeds of each row, 0.01 above and below these values at steps 1 and 2. */
function curvesOf(...rows: readonly (readonly [first: number, end: number])[]): RecordedCurves {
  const runs = rows.flatMap(([first, end], row) =>
    [-0.01, 0.01].map((by, i) => ({ row, seed: i + 1, values: [first + by, end + by] })),
  );
  return { metric: 'reward', maxSteps: 2, rows: rows.map((_, rate) => ({ rate })), runs };
}

describe('regret', () => {
  test('is nothing where the row that ends best leads at the rung', () => {
    const { winner, best, ...figures } = regretOf(curvesOf([0.4, 0.9], [0.3, 0.5]), halving);
    assert.deepEqual([winner, best], [0, 0]);
    assert.deepEqual(figures, {
      runs: 4,
      steps_ratio: 0.75,
      regret: 0,
      standard_error: 0.01,
      regret_in_standard_errors: 0,
    });
  });

  test('is what the best row ends above the preferred one, where the rung drops it', () => {
    const { winner, best, regret, regret_in_standard_errors } = regretOf(curvesOf([0.3, 0.9], [0.4, 0.85]), halving);
    assert.deepEqual([winner, best, regret, regret_in_standard_errors], [1, 0, 0.05, 5]);
  });

  test('of a choice by some of the runs is measured over all of them', () => {
    const curves = curvesOf([0.4, 0.9], [0.395, 0.88]);
    // Its lower seed against the other's higher one.
    const seen = curves.runs.filter(({ row, seed }) => seed === row + 1);
    assert.equal(regretOf(curves, halving).regret, 0);
    assert.equal(regretOf(curves, halving, seen).regret, 0.02);
  });

  test('over other seeds is 0 where no seed can change the order, and spread where it can', () => {
    assert.deepEqual(resampledRegret(curvesOf([0.4, 0.9], [0.3, 0.5]), halving), {
      mean: 0,
      median: 0,
      p90: 0,
      within_one: 1,
    });
    // Equal at the rung but for 0.001: of 16 pairs of draws, 5 prefer the second row.
    const { median, within_one } = resampledRegret(curvesOf([0.401, 0.9], [0.4, 0.85]), halving);
    assert.equal(median, 0);
    assert.ok(within_one > 0.6 && within_one < 0.8, String(within_one));
  });
});

test('the recorded curves are those of nine rows with three seeds, with a value at each rung of a usual halving', async () => {
  const { maxSteps, rows, runs } = (await readCurves())!;
  assert.deepEqual([rows.length, runs.length], [9, 27]);
  for (const { values } of runs)
    for (const step of rungSteps(maxSteps, usual)) assert.equal(typeof values[step - 1], 'number');
  const { steps_ratio, regret_in_standard_errors } = regretOf((await readCurves())!, usual);
  assert.ok(steps_ratio <= 1 / 3, String(steps_ratio));
  assert.ok(regret_in_standard_errors <= 1, String(regret_in_standard_errors));
});
