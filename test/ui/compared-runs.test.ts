/** Comparing several runs on the page. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { runsMeant } from '../../core/runs-meant.ts';
import {
  type Compared,
  differingSettings,
  evaluationMetrics,
  experimentsOf,
  lastOf,
  linesOf,
  mergedSeries,
  pointsOfEach,
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

test('a mean is of steps that all of its runs have, between its standard errors', () => {
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
  const lines = linesOf(runs, true);
  const { drawn, series } = mergedSeries(lines, 'train/reward', ({ step }) => step);
  const { path } = series;
  assert.deepEqual(path.step, [1, 3, 4]);
  const rounded = (name: string) => path.values[name]!.map((value) => value && Number(value.toFixed(6)));
  assert.deepEqual(rounded('a1, mean of 2 seeds'), [0.3, 0.7, null]);
  assert.deepEqual(path.values['b'], [null, null, 1]);
  // Of two values the standard error of their mean is half of what they are apart.
  const [{ band }, alone] = drawn as [(typeof drawn)[0], (typeof drawn)[0]];
  assert.deepEqual(
    [rounded(band!.low), rounded(band!.high)],
    [
      [0.2, 0.6, null],
      [0.4, 0.8, null],
    ],
  );
  assert.deepEqual(alone, { metric: 'b', label: 'b' });
  const last = lastOf(lines[0]!, 'train/reward')!;
  assert.deepEqual([last.step, last.mean.toFixed(6), last.standardError!.toFixed(6)], [3, '0.700000', '0.100000']);
  assert.deepEqual(lastOf(lines[1]!, 'train/reward'), { mean: 1, standardError: null, step: 4 });
  assert.equal(lastOf(lines[1]!, 'entropy'), null);
});

test('a name means that run, and a beginning with a star all whose names begin so', () => {
  const names = ['lr-10-s1', 'lr-2-s1', 'lr', 'words', 'lr-2-s2'];
  assert.deepEqual(runsMeant(['lr-*'], names), { runs: ['lr-2-s1', 'lr-2-s2', 'lr-10-s1'], absent: [] });
  assert.deepEqual(runsMeant(['words', 'lr-2-s2', 'lr-2-*', 'other', 'x*'], names), {
    runs: ['words', 'lr-2-s2', 'lr-2-s1'],
    absent: ['other', 'x*'],
  });
  assert.equal(runsMeant(['*'], names).runs.length, 5);
  assert.deepEqual(runsMeant(['l.*', '[a-z]*'], names).runs, [], 'a pattern of regular expressions is none here');
});

test('the more runs, the fewer points of each: all of them together stay as many', () => {
  assert.equal(pointsOfEach(2), 1_000);
  for (const runs of [0, 1, 27, 100, 300]) assert.ok(pointsOfEach(runs) * runs <= 12_000, String(runs));
  assert.equal(pointsOfEach(500), 40);
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
