import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { stepMetrics } from '../../../core/rl/metrics.ts';
import { packSamples } from './pack-samples.ts';
import type { ScoredGroup, ScoredRollout, Turn } from '../../../core/rl/rollout/rollout.ts';
import { factsOfGroup } from '../../../core/rl/rollout/group-facts.ts';

const turn = (promptTokenIds: number[], tokenIds: number[], finishReason: Turn['finishReason'] = 'stop'): Turn => ({
  promptTokenIds,
  tokenIds,
  logprobs: tokenIds.map((id) => -id / 100),
  text: '',
  finishReason,
  policyStep: 0,
});
const rollout = (
  index: number,
  reward: number | null,
  turns: readonly Turn[] = [turn([1, 2], [7, 0])],
): ScoredRollout => ({
  group: 1,
  index,
  exampleId: 0,
  turns,
  ...(reward === null ? { outcome: 'infra_failure', reward } : { outcome: 'ok', reward }),
  metrics: reward === null ? {} : { exact_match: Number(reward === 1) },
});
const group = (ordinal: number, rollouts: readonly ScoredRollout[], policyStep = 0): ScoredGroup => ({
  ordinal,
  environment: 'reverse-text',
  exampleId: 0,
  epoch: 0,
  policyStep,
  rollouts: rollouts.map((one) => ({ ...one, turns: one.turns.map((said) => ({ ...said, policyStep })) })),
});
const centered = { advantage: 'centered' } as const;

describe('packing', () => {
  test('tokens that were drawn from another distribution say so, in rows where it was another one', () => {
    const drawn: Turn = { ...turn([1, 2], [7, 0]), samplingLogprobs: [-0.01, -0] };
    const next = turn([1, 2, 7, 0, 3], [8]);
    const same: Turn = { ...turn([1, 2], [7, 0]), samplingLogprobs: [-0.07, -0] };
    const { samples } = packSamples([group(1, [rollout(0, 1, [drawn, next]), rollout(1, 0, [same])])], centered);
    assert.deepEqual(samples[0]?.behaviorLogprobs, [0, 0, -0.07, -0, 0, -0.08]);
    assert.deepEqual(samples[0]?.samplingLogprobs, [0, 0, -0.01, -0, 0, -0.08]);
    assert.ok(!('samplingLogprobs' in samples[1]!));
  });

  test('a row of which one turn lacks the policy’s has none, and keeps what its tokens were drawn with', () => {
    const drawn: Turn = { ...turn([1, 2], [7, 0]), logprobs: null, samplingLogprobs: [-0.01, -0.02] };
    const next = turn([1, 2, 7, 0, 3], [8]);
    const told: Turn = { ...turn([1, 2], [7]), logprobs: null };
    const { samples } = packSamples([group(1, [rollout(0, 1, [drawn, next]), rollout(1, 0, [told])])], centered);
    assert.ok(!('behaviorLogprobs' in samples[0]!));
    assert.deepEqual(samples[0]?.samplingLogprobs, [0, 0, -0.01, -0.02, 0, -0.08]);
    assert.ok(!('behaviorLogprobs' in samples[1]!) && !('samplingLogprobs' in samples[1]!));
  });

  test('rows say which rollout they are of where a rollout is not one row', () => {
    const broken = [turn([1, 2], [7, 0]), turn([1, 2, 5], [8]), turn([1, 6], [9])];
    const rollouts = [rollout(0, 1), rollout(1, null), rollout(2, 0, broken), rollout(3, 0.5)];
    const { samples } = packSamples([group(1, rollouts)], centered);
    assert.deepEqual(
      samples.map((row) => row.rollout),
      [0, 1, 1, 1, 2].map((index) => ({ index, of: 3 })),
    );
    const cut = { ...rollout(1, 0), outcome: 'truncated' as const, reward: 0 };
    const masked = packSamples([group(1, [rollout(0, 1), cut, rollout(2, 1)])], { ...centered, maskTruncated: true });
    assert.deepEqual(
      masked.samples.map((row) => row.rollout),
      [0, 2].map((index) => ({ index, of: 3 })),
    );
    const plain = packSamples([group(1, [rollout(0, 1), rollout(1, 0)])], centered);
    assert.ok(plain.samples.every((row) => !('rollout' in row)));
  });

  test("a user's advantage sees the rewarded rollouts in order, and what it gives is checked", () => {
    const rollouts = [rollout(2, 0.5), rollout(0, 1), rollout(1, null)];
    const { samples } = packSamples([group(1, rollouts)], {
      advantage: (rewards, { rollouts: seen }) => rewards.map((reward, i) => 10 * reward + seen[i]!.index),
    });
    assert.deepEqual(
      samples.map(({ advantages }) => advantages.at(-1)),
      [10, 7],
    );
    for (const wrong of [[1], [1, NaN], [1, 'a'], [1, 1n], Array(2), 'none', null, undefined]) {
      const advantage = (): never => wrong as never;
      assert.throws(() => packSamples([group(1, rollouts)], { advantage }), {
        code: 'Unsupported',
        message: /must give 2 finite numbers/,
      });
    }
  });

  test('an advantage that throws is refused, not tried again', () => {
    const advantage = (): never => {
      throw new Error('boom');
    };
    assert.throws(() => packSamples([group(1, [rollout(0, 1), rollout(1, 0)])], { advantage }), {
      code: 'Unsupported',
      message: /custom advantage failed for rewards \[1, 0\]: Error: boom/,
    });
  });

  test('a single turn is one row; only sampled tokens are trained, each with the advantage of its rollout', () => {
    const { samples, stats } = packSamples([group(1, [rollout(0, 1), rollout(1, 0)])], centered);
    assert.deepEqual(samples[0], {
      tokenIds: [1, 2, 7, 0],
      lossMask: [0, 0, 1, 1],
      behaviorLogprobs: [0, 0, -0.07, -0],
      advantages: [0, 0, 0.5, 0.5],
    });
    assert.deepEqual(samples[1]?.advantages, [0, 0, -0.5, -0.5]);
    assert.deepEqual(stats, {
      groups: 1,
      rollouts: 2,
      rows: 2,
      totalTokens: 8,
      trainedTokens: 4,
      signalTokens: 4,
      observedTokens: 0,
    });
  });

  test('turns that only append to the conversation share one row with several trained spans', () => {
    const turns = [turn([1, 2], [7, 8]), turn([1, 2, 7, 8, 3], [9])];
    const { samples } = packSamples([group(1, [rollout(0, 1, turns), rollout(1, 0)])], centered);
    assert.deepEqual(samples[0]?.tokenIds, [1, 2, 7, 8, 3, 9]);
    assert.deepEqual(samples[0]?.lossMask, [0, 0, 1, 1, 0, 1]);
  });

  test('a turn that rewrites the past begins a row of its own', () => {
    const turns = [turn([1, 2], [7, 8]), turn([1, 2, 8, 3], [9]), turn([1, 2, 8, 3, 9], [5])];
    const { samples } = packSamples([group(1, [rollout(0, 1, turns), rollout(1, 0)])], centered);
    assert.deepEqual(samples.map(({ tokenIds }) => tokenIds).slice(0, 2), [
      [1, 2, 7, 8],
      [1, 2, 8, 3, 9, 5],
    ]);
  });

  test('rollouts without a reward are left out and do not count in the baseline', () => {
    const { samples, stats } = packSamples([group(1, [rollout(0, 1), rollout(1, null), rollout(2, 0)])], centered);
    assert.deepEqual(
      samples.map(({ advantages }) => advantages.at(-1)),
      [0.5, -0.5],
    );
    assert.equal(stats.rollouts, 2);
  });

  test('rows come by ordinal and index, whatever the order of arrival', () => {
    const tagged = (ordinal: number) =>
      group(
        ordinal,
        [1, 0].map((i) => rollout(i, i, [turn([ordinal], [i])])),
      );
    const { samples } = packSamples([tagged(12), tagged(3)], centered);
    assert.deepEqual(
      samples.map(({ tokenIds }) => tokenIds),
      [
        [3, 0],
        [3, 1],
        [12, 0],
        [12, 1],
      ],
    );
  });

  test('the four arrays of a row are equally long, position 0 is never trained, untrained positions are 0', () => {
    const tokens = fc.array(fc.nat(9), { maxLength: 5 });
    const turns = fc.array(fc.tuple(tokens, tokens), { maxLength: 4 });
    fc.assert(
      fc.property(fc.array(turns, { minLength: 1, maxLength: 4 }), (histories) => {
        const rollouts = histories.map((turns, i) =>
          rollout(
            i,
            i,
            turns.map(([prompt, ids]) => turn(prompt, ids)),
          ),
        );
        for (const sample of packSamples([group(1, rollouts)], centered).samples) {
          const { tokenIds, lossMask, behaviorLogprobs = [], advantages } = sample;
          for (const array of [lossMask, behaviorLogprobs, advantages]) assert.equal(array.length, tokenIds.length);
          assert.equal(lossMask[0], 0);
          assert.ok(lossMask.includes(1));
          assert.ok(lossMask.every((mask, i) => mask === 1 || (behaviorLogprobs[i] === 0 && advantages[i] === 0)));
        }
      }),
    );
  });

  test('a rollout whose logprobs do not match its tokens is a bug and says which rollout it is', () => {
    const broken = { ...turn([1], [2, 3]), logprobs: [-1] };
    assert.throws(
      () => packSamples([group(1, [rollout(3, 1, [broken])])], centered),
      /Rollout 1\/3 has 2 .* 1 logprobs/,
    );
  });

  test('no groups make an empty batch', () => {
    assert.deepEqual(packSamples([], centered).samples, []);
  });
});

describe('step metrics', () => {
  const filter = { minRewardVariance: 0, minReward: 0, maxReward: 1, onlineDifficultyFiltering: false };
  const solved = group(1, [rollout(0, 1), rollout(1, 1)]);
  const mixed = group(2, [rollout(0, 1), { ...rollout(1, 0), outcome: 'truncated', reward: 0 }, rollout(2, null)], 1);
  const metrics = stepMetrics({
    step: 3,
    finished: [solved, mixed].map((one) => factsOfGroup(one)),
    trained: [factsOfGroup(mixed)],
    filter,
    environments: ['words'],
  });

  test('the reward is the mean over all that finished, the effective reward over what was trained', () => {
    assert.equal(metrics['train/reward'], 0.75);
    assert.equal(metrics['train/agg/effective/reward/mean'], 0.5);
    assert.equal(metrics['train/agg/all/metrics/exact_match'], 0.75);
  });

  test('solved groups, truncation, errors, staleness and dropped groups are counted', () => {
    assert.equal(metrics['train/agg/all/solved_all'], 0.5);
    assert.equal(metrics['train/agg/all/solved_none'], 0);
    assert.equal(metrics['train/agg/all/is_truncated/mean'], 0.25);
    assert.equal(metrics['train/agg/all/error/infra_failure'], 1);
    assert.equal(metrics['off_policy/max'], 1);
    assert.equal(metrics['filter/no_signal'], 1);
    assert.equal(metrics['batch/rollouts'], 2);
    assert.equal(metrics['rollout/mean_length'], 2);
  });

  test('with nothing finished there are no means, and no value is ever NaN', () => {
    const empty = stepMetrics({ step: 1, finished: [], trained: [], filter, environments: ['words'] });
    assert.equal('train/reward' in empty, false);
    for (const value of [...Object.values(empty), ...Object.values(metrics)]) assert.ok(Number.isFinite(value));
  });
});
