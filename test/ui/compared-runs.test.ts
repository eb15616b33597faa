/** Comparing several runs on the page. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type Compared,
  differingSettings,
  evaluationMetrics,
  experimentsOf,
  linesOf,
  mergedSeries,
} from '../../ui/page/compared-runs.ts';

function run(
  name: string,
  settings: Readonly<Record<string, string>>,
  rewards: readonly (readonly [step: number, reward: number | null])[] = [],
  metrics: readonly string[] = [],
): Compared {
  const step = rewards.map(([at]) => at);
  const values = { 'train/reward': rewards.map(([, reward]) => reward) };
  return {
    run: name,
    overview: { metrics } as unknown as Compared['overview'],
    series: { path: { lineage: 'main', step, time: step, values }, left: [], stepsPerPoint: 1 },
    settings: { name: `"${name}"`, learning_rate: '0.001', ...settings },
  };
}

test('runs that differ by seed and name alone are one experiment, and nothing else makes one of two', () => {
  const runs = [
    run('a1', { seed: '1' }),
    run('b1', { seed: '1', learning_rate: '0.01' }),
    run('a2', { seed: '2', 'wandb.name': '"second"', 'store.uri': '"file:///elsewhere/"' }),
    run('c1', { seed: '1', 'sampling.temperature': '0.7' }),
  ];
  const names = experimentsOf(runs).map((own) => own.map((one) => one.run));
  assert.deepEqual(names, [['a1', 'a2'], ['b1'], ['c1']]);
  assert.deepEqual(
    linesOf(runs, true).map(({ label }) => label),
    ['a1, mean of 2 seeds', 'b1', 'c1'],
  );
  assert.equal(linesOf(runs, false).length, 4);
  assert.deepEqual(differingSettings(runs.slice(0, 2)), ['learning_rate']);
});

test('a mean is of steps that all of its runs have', () => {
  const runs = [
    run('a1', { seed: '1' }, [
      [1, 0.2],
      [2, null],
      [3, 0.6],
    ]),
    run('a2', { seed: '2' }, [
      [1, 0.4],
      [2, 0.5],
      [3, 0.8],
      [4, 0.9],
    ]),
    run('b', { learning_rate: '1' }, [[4, 1]]),
  ];
  const { path } = mergedSeries(linesOf(runs, true), 'train/reward', ({ step }) => step);
  assert.deepEqual(path.step, [1, 3, 4]);
  const mean = path.values['a1, mean of 2 seeds']!.map((value) => value && Number(value.toFixed(6)));
  assert.deepEqual(mean, [0.3, 0.7, null]);
  assert.deepEqual(path.values['b'], [null, null, 1]);
});

test('each evaluation of any of the runs has a chart', () => {
  const runs = [
    run('a', {}, [], ['eval/short/reward/mean', 'train/reward', 'eval/short/metrics/exact_match']),
    run('b', {}, [], ['eval/a/b/greedy/reward/mean', 'eval/short/reward/mean']),
  ];
  assert.deepEqual(evaluationMetrics(runs), [
    { title: 'evaluation, a/b, greedy', metric: 'eval/a/b/greedy/reward/mean' },
    { title: 'evaluation, short', metric: 'eval/short/reward/mean' },
  ]);
});
