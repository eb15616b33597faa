import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { bootstrapMean } from '../../../core/eval/bootstrap.ts';
import { describeRegression, judgeRegression, rewardsByExample } from '../../../core/eval/regression.ts';
import { readSteps, selectSteps } from '../../../core/eval/select-steps.ts';
import { randomStream } from '../../../core/random.ts';

const rewardsOf = (values: readonly number[]) => Object.fromEntries(values.map((value, i) => [String(i), value]));
const version = (step: number, values: readonly number[]) => ({ step, rewards: rewardsOf(values) });

describe('the bootstrap', () => {
  test('an interval holds the mean, and is the same for the same key', () => {
    fc.assert(
      fc.property(fc.array(fc.double({ min: -5, max: 5, noNaN: true }), { minLength: 1, maxLength: 60 }), (values) => {
        const interval = bootstrapMean(values, { key: [1], resamples: 400 });
        assert.deepEqual(bootstrapMean(values, { key: [1], resamples: 400 }), interval);
        assert.ok(interval.low <= interval.high);
        assert.ok(Math.min(...values) - 1e-9 <= interval.low && interval.high <= Math.max(...values) + 1e-9);
      }),
    );
  });

  test('95 % of the intervals hold the true mean', () => {
    const random = randomStream('coverage');
    let held = 0;
    for (let trial = 0; trial < 300; trial++) {
      const values = Array.from({ length: 64 }, () => (random() < 0.3 ? 1 : 0));
      const { low, high } = bootstrapMean(values, { key: [trial], resamples: 500 });
      if (low <= 0.3 && 0.3 <= high) held += 1;
    }
    assert.ok(held >= 270 && held <= 298, `${held} of 300`);
  });

  test('of nothing there is no mean', () => {
    assert.throws(() => bootstrapMean([], { key: [] }), RangeError);
  });
});

describe('a regression', () => {
  const random = randomStream('examples');
  const hard = Array.from({ length: 128 }, () => random());

  test('what every example lost a little of is one, however much examples differ', () => {
    const judged = judgeRegression(
      version(
        20,
        hard.map((reward) => reward - 0.02),
      ),
      [version(10, hard)],
      ['run'],
    );
    assert.equal(judged?.isWorse, true);
    assert.equal(judged.best.step, 10);
    assert.match(
      describeRegression('words', 'v20', judged),
      /words fell from .* \(v10, .* with v20: -0\.020 per example/,
    );
  });

  test('noise is none', () => {
    const noisy = hard.map((reward) => reward + (random() - 0.5) * 0.2);
    assert.equal(judgeRegression(version(20, noisy), [version(10, hard)], ['run'])?.isWorse, false);
    assert.equal(judgeRegression(version(20, hard), [version(10, hard)], ['run'])?.isWorse, false);
  });

  test('it is held against the best before it, not against the last', () => {
    const before = [
      version(
        0,
        hard.map((reward) => reward - 0.4),
      ),
      version(10, hard),
      version(
        20,
        hard.map((r) => r - 0.3),
      ),
    ];
    const judged = judgeRegression(
      version(
        30,
        hard.map((reward) => reward - 0.1),
      ),
      before,
      ['run'],
    );
    assert.equal(judged?.best.step, 10);
    assert.equal(judged.isWorse, true);
  });

  test('only examples that both have count; without two of them there is nothing to say', () => {
    assert.equal(judgeRegression(version(1, [1, 1]), [], []), null);
    assert.equal(judgeRegression({ step: 1, rewards: { 7: 1 } }, [version(0, [1, 1, 1])], []), null);
    const judged = judgeRegression({ step: 1, rewards: { 1: 0, 2: 0, 9: 5 } }, [version(0, [1, 1, 1])], []);
    assert.equal(judged?.examples, 2);
    assert.equal(judged.reward, 0);
  });

  test('rollouts that infrastructure failed are no rewards of 0', () => {
    const rows = [
      { example_id: 3, reward: 1 },
      { example_id: 3, reward: null },
      { example_id: 4, reward: null },
      { example_id: 5, reward: 0.5 },
      { example_id: 5, reward: 0 },
    ];
    assert.deepEqual(rewardsByExample(rows), { 3: 1, 5: 0.25 });
  });
});

describe('which checkpoints', () => {
  test('all of them, or those that are named with the base model beside them', () => {
    assert.deepEqual(selectSteps([0, 50, 10], { steps: null, includesBase: true }).chosen, [0, 10, 50]);
    assert.deepEqual(selectSteps([0, 50, 10], { steps: null, includesBase: false }).chosen, [10, 50]);
    const named = selectSteps([0, 10, 50], { steps: [50, 70], includesBase: true });
    assert.deepEqual(named, { chosen: [0, 50], missing: [70] });
    assert.deepEqual(selectSteps([0, 10], { steps: [0], includesBase: false }).chosen, [0]);
  });

  test('steps are read as prime-rl writes them, with brackets and without', () => {
    assert.deepEqual(readSteps('10,50, 100'), [10, 50, 100]);
    assert.deepEqual(readSteps('[10]'), [10]);
    for (const wrong of ['', 'a', '1,,2', '-1', '1.5']) assert.equal(readSteps(wrong), null);
  });
});
