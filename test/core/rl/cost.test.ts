/** Usage and cost of a run: numbers in, numbers out. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CostSpec } from '../../../config/run-spec.ts';
import { costMetrics, costOf, moneyText, partName, type Used, usedByStep, usedLines } from '../../../core/rl/cost.ts';

const prices = CostSpec.parse({ prompt: 2, completion: 8, trained: 10, gpuHour: 3, gpuWorkers: 2 });
const rows = { parts: [], tokens: [100, 50], counted: [20, 10] };
const use = { rows, passes: 2, isTaught: false, seconds: 1800 };

test('a step is charged for what it sampled, for its rows in every pass, and for the hours of its workers', () => {
  const used = usedByStep({ prompt: 1_000_000, completion: 500_000 }, use, prices);
  assert.deepEqual(used, { prompt: 1_000_000, completion: 500_000, trained: 300, gpuHours: 1, rolloutHours: 0.5 });
  assert.deepEqual(costMetrics(used, prices), {
    'cost/prompt_tokens': 1_000_000,
    'cost/completion_tokens': 500_000,
    'cost/trained_tokens': 300,
    'cost/gpu_hours': 1,
    'cost/rollout_hours': 0.5,
    'cost/money': 2 + 4 + 300 * 1e-5 + 3,
  });
});

test('a teacher is charged for the rows that it was asked about', () => {
  const all = usedByStep({}, { ...use, isTaught: true }, prices);
  const some = usedByStep({}, { ...use, rows: { ...rows, distilled: [1] }, isTaught: true }, prices);
  assert.deepEqual([all.teacher, some.teacher], [150, 50]);
});

test('without a price there are tokens and hours, and no money', () => {
  const names = Object.keys(costMetrics({ prompt: 5 }, CostSpec.parse({ gpuWorkers: 4 }), 'eval/words/'));
  assert.deepEqual(names, ['eval/words/cost/prompt_tokens']);
  assert.deepEqual(Object.keys(costMetrics({ prompt: 5 }, undefined)), ['cost/prompt_tokens']);
});

test('a run costs the sum of its training, its evaluations and its searches, each named', () => {
  const row = (used: Used, of: Parameters<typeof costMetrics>[2]): [string, number][] =>
    Object.entries(costMetrics(used, prices, of));
  const cost = costOf(
    [
      ['train/reward', 7],
      ...row({ prompt: 1_500_000, trained: 100_000 }, ''),
      ...row({ completion: 250_000 }, 'eval/owner/words/'),
      ...row({ completion: 125_000 }, 'search/words/'),
    ],
    'EUR',
  )!;
  assert.deepEqual(
    cost.parts.map((part) => [partName(part), part.money, usedLines(part.used).join(', ')]),
    [
      ['training', 4, '1.5 M prompt tokens, 100,000 trained tokens'],
      ['evals of owner/words', 2, '250,000 sampled tokens'],
      ['searches of words', 1, '125,000 sampled tokens'],
    ],
  );
  assert.equal(moneyText(cost.money!, cost.currency), '7.00 EUR');
  assert.equal(moneyText(0.00123, 'EUR'), '0.0012 EUR');
  assert.equal(costOf([['train/reward', 7]], undefined), null);
});
