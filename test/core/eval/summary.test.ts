/** Summary of an evaluation, counted from its rows. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { distribution } from '../../../core/eval/distribution.ts';
import { factsOf } from '../../../core/eval/result-rows.ts';
import { summarize } from '../../../core/eval/summary.ts';

describe('the summary of an evaluation', () => {
  const rows = [
    { example_id: 0, reward: 1, metrics: { exact: 1 }, token_usage: { input_tokens: 3, output_tokens: 5 } },
    { example_id: 0, reward: 0.2, metrics: { exact: 0 }, token_usage: { input_tokens: 3, output_tokens: 7 } },
    { example_id: 1, reward: 0, metrics: { exact: 0 }, error: { error: 'timeout', message: 'late' } },
    { example_id: 1, reward: 0.8, metrics: {}, is_truncated: true },
  ].map(factsOf);

  test('leaves failed rollouts out of every mean and counts them by cause', () => {
    const { rollouts, examples, reward, metrics, failures, truncated, usage } = summarize(rows);
    assert.deepEqual([rollouts, examples, truncated], [4, 2, 1]);
    assert.deepEqual([reward?.count, reward?.min, reward?.max], [3, 0.2, 1]);
    assert.ok(Math.abs(reward!.mean - 2 / 3) < 1e-12);
    assert.deepEqual(metrics, { exact: { count: 2, mean: 0.5, min: 0, max: 1 } });
    assert.deepEqual(failures, [{ cause: 'timeout', count: 1, message: 'late' }]);
    assert.deepEqual([usage.input?.mean, usage.output?.mean], [3, 6]);
  });

  test('counts a policy’s own failure with its reward, reward functions that threw, and what was played anew', () => {
    const ratchet = {
      outcome: 'policy_failure',
      raised: { exact: 'KeyError: 1' },
      played_again: { count: 3, first: 'the reply was empty' },
    };
    const row = factsOf({ example_id: 0, reward: 0.25, metrics: {}, error: { error: 'Empty', message: 'x' }, ratchet });
    const { reward, failures, policyFailures, notes } = summarize([...rows, row]);
    assert.deepEqual([reward?.count, failures.length, policyFailures], [4, 2, 1]);
    assert.deepEqual(notes, [
      { cause: 'played anew', count: 1, message: 'the reply was empty' },
      { cause: 'the reward function exact threw, which counts as 0', count: 1, message: 'KeyError: 1' },
    ]);
  });

  test('has pass@k over examples none of whose rollouts failed', () => {
    assert.deepEqual(summarize(rows).passAtK, { 1: 0.5, 2: 1 });
    assert.deepEqual(summarize(rows).passAllK, { 1: 0.5, 2: 0 });
    assert.deepEqual(summarize(rows, 0.1).passAllK, { 1: 1, 2: 1 });
    assert.deepEqual(summarize([]).passAtK, {});
  });
});

describe('a distribution', () => {
  test('of few values has a bin for each', () => {
    assert.deepEqual(distribution([1, 0, 1, 0.0004]), [
      { from: 0, to: 0, count: 2 },
      { from: 1, to: 1, count: 2 },
    ]);
    assert.deepEqual(distribution([]), []);
  });

  test('holds every value once, in ascending bins that touch', () => {
    fc.assert(
      fc.property(fc.array(fc.double({ min: -5, max: 5, noNaN: true }), { minLength: 1 }), (values) => {
        const bins = distribution(values);
        assert.ok(bins.length <= 10);
        assert.equal(
          bins.reduce((sum, { count }) => sum + count, 0),
          values.length,
        );
        for (const [i, bin] of bins.entries()) if (i > 0) assert.ok(bin.from >= bins[i - 1]!.to - 1e-9);
      }),
    );
  });

  test('of many rewards between 0 and 1 has tenths', () => {
    const bins = distribution(Array.from({ length: 101 }, (_, i) => i / 100));
    assert.deepEqual([bins[0], bins.at(-1)!.to, bins.at(-1)!.count], [{ from: 0, to: 0.1, count: 10 }, 1, 11]);
  });
});
