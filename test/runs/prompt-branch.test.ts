import assert from 'node:assert/strict';
import { test } from 'node:test';
import { areBranchesDue, verdictOn } from '../../workflows/beside/prompt-branch.ts';
import { drawExamples, shrunkTo } from '../../core/gepa/examples.ts';
import type { PromptTrial } from '../../core/gepa/prompt-search.ts';
import { poolsUnder } from '../../core/rl/sampling/pools.ts';
import { promptsOfBatch } from '../../core/rl/rollout/prompts-of-batch.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';

const steps = (settings: { interval: number | null; atSteps: number[] }, last = 10): number[] =>
  Array.from({ length: last + 1 }, (_, step) => step).filter((step) => areBranchesDue(settings, step, last));

test('branches are due every interval after step 0 and at the steps that are named, never at the last one', () => {
  assert.deepEqual(steps({ interval: 4, atSteps: [] }), [4, 8]);
  assert.deepEqual(steps({ interval: null, atSteps: [0, 3, 10] }), [0, 3]);
  assert.deepEqual(steps({ interval: 5, atSteps: [5, 6] }), [5, 6]);
  assert.deepEqual(steps({ interval: null, atSteps: [] }), []);
});

test('a winner is taken by itself only when it is better beyond chance', () => {
  const trial = (mean: number, low: number): PromptTrial => ({
    prompt: { key: 'prompts/x.txt', sha256: 'x', bytes: 1 },
    examples: 20,
    before: 0.5,
    after: 0.5 + mean,
    difference: { mean, low, high: mean + 0.1 },
  });
  assert.equal(verdictOn(trial(0.2, 0.1), 'if_better'), 'taken');
  assert.equal(verdictOn(trial(0.2, 0), 'if_better'), 'no better');
  assert.equal(verdictOn(trial(0.2, -0.1), 'ask'), 'offered');
  assert.equal(verdictOn(trial(-0.1, -0.2), 'ask'), 'no better');
  assert.equal(verdictOn(trial(0.2, 0.1), 'never'), 'told');
  assert.equal(verdictOn({ ...trial(0.2, 0.1), difference: null }, 'if_better'), 'no better');
});

test('examples of a branch are all of training’s own, apart from one another, also where there are few', () => {
  const asked = { train: 100, val: 50, test: 50 };
  assert.deepEqual(shrunkTo(200, asked), asked);
  const few = shrunkTo(40, asked);
  assert.deepEqual(few, { train: 20, val: 10, test: 10 });
  const drawn = drawExamples([{ dataset: 40, evalDataset: 0 }], { seed: 1, ...few });
  const all = [...drawn.train, ...drawn.val, ...drawn.test];
  assert.ok(all.every(([, dataset]) => dataset === 'dataset'));
  assert.equal(new Set(all.map(([, , example]) => example)).size, 40);
});

test('pools of an environment whose prompt is another one by now are dropped, the others stay', () => {
  const pools = { a: { easy: '1-3', hard: '' }, b: { easy: '', hard: '4' } };
  assert.deepEqual(poolsUnder(pools, {}, { a: 'new' }), { b: pools.b });
  assert.deepEqual(poolsUnder(pools, { a: 'new' }, { a: 'new' }), pools);
  assert.deepEqual(poolsUnder(pools, { a: 'new' }, {}), { b: pools.b });
});

const groupPlayed = (environment: string, prompts: readonly (string | undefined)[], leased?: string): ScoredGroup => ({
  ordinal: 7,
  environment,
  exampleId: 0,
  epoch: 0,
  policyStep: 1,
  ...(leased === undefined ? {} : { prompt: leased }),
  rollouts: prompts.map((prompt, index) => ({
    group: 7,
    index,
    exampleId: 0,
    turns: [],
    outcome: 'ok',
    reward: 1,
    metrics: {},
    ...(prompt === undefined ? {} : { prompt }),
  })),
});

test('a batch says with which prompts its groups were played, and one whose rollouts had two is refused', () => {
  assert.equal(promptsOfBatch([groupPlayed('a', [undefined, undefined])]), undefined);
  const groups = [groupPlayed('a', [undefined]), groupPlayed('a', ['x', 'x'], 'x'), groupPlayed('b', ['x'], 'x')];
  assert.deepEqual(promptsOfBatch(groups), { a: { own: 1, x: 1 }, b: { x: 1 } });
  assert.throws(
    () => promptsOfBatch([groupPlayed('a', ['x', undefined], 'x')]),
    /Group 7 of a was leased with the prompt x, and its rollout 1 was played with the environment's own prompt/,
  );
});
