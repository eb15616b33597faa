import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { allFlags, filterMetrics, leavesNothing, ownFlags } from '../../../core/rl/filters/filters.ts';
import { packSamples } from './pack-samples.ts';
import type { RolloutFlag, ScoredGroup, ScoredRollout, Turn } from '../../../core/rl/rollout/rollout.ts';
import type { RolloutFilterSpec } from '../../../config/run-spec.ts';

const vocabulary = 150_000;
/** −ln(150,000) − 2 */
const least = -13.918;
const gibberish = (enforce: boolean): RolloutFilterSpec => ({
  type: 'gibberish',
  enforce,
  tokenIdThreshold: 100_000,
  logprobOffset: 2,
});
const repetition = (enforce: boolean, window = 4): RolloutFilterSpec => ({
  type: 'repetition',
  enforce,
  window,
  probThreshold: 0.99,
});
const zeroAdvantage: RolloutFilterSpec = { type: 'zero_advantage', enforce: true };

const turn = (tokens: readonly (readonly [id: number, logprob: number])[]): Turn => ({
  promptTokenIds: [1],
  tokenIds: tokens.map(([id]) => id),
  logprobs: tokens.map(([, logprob]) => logprob),
  text: 'said',
  finishReason: 'stop',
  policyStep: 0,
});
const certain = (count: number) => turn(Array.from({ length: count }, (): [number, number] => [5, -0.001]));
const strange = turn([[100_001, least - 0.01]]);
const rollout = (index: number, reward: number, flags?: RolloutFlag[]): ScoredRollout => ({
  group: 1,
  index,
  exampleId: 0,
  turns: [turn([[5, -1]])],
  outcome: 'ok',
  reward,
  metrics: {},
  ...(flags && { flags }),
});
const group = (...rollouts: ScoredRollout[]): ScoredGroup => ({
  ordinal: 1,
  environment: 'e',
  exampleId: 0,
  epoch: 0,
  policyStep: 0,
  rollouts,
});
const names = (turns: readonly Turn[], ...pre: RolloutFilterSpec[]) =>
  ownFlags({ turns, reward: 1 }, { pre, post: [] }, vocabulary).map(({ name, isEnforced }) => `${name} ${isEnforced}`);

describe('filters of rollouts', () => {
  test('gibberish: a token with a high id that the policy finds far less likely than chance', () => {
    assert.deepEqual(names([strange], gibberish(true)), ['gibberish true']);
    assert.deepEqual(names([turn([[100_000, -50]])], gibberish(true)), [], 'the id is not above the threshold');
    assert.deepEqual(names([turn([[100_001, least + 0.01]])], gibberish(true)), [], 'it is likely enough');
  });

  test('repetition: so many tokens in a row that the policy is all but sure of, also across turns', () => {
    assert.deepEqual(names([certain(4)], repetition(false)), ['repetition false']);
    assert.deepEqual(names([certain(3)], repetition(false)), []);
    assert.deepEqual(names([certain(3), certain(1)], repetition(false)), ['repetition false']);
    assert.deepEqual(names([certain(3), turn([[5, -0.02]]), certain(3)], repetition(false)), [], 'the row was broken');
  });

  test('low_reward: a reward below the least one; a rollout without a reward has none to be low', () => {
    const lowReward: RolloutFilterSpec = { type: 'low_reward', enforce: true, minReward: 0.5 };
    const filters = { pre: [], post: [lowReward] };
    const flagged = (reward: number | null) => {
      const one = reward === null ? { turns: [], reward } : rollout(0, reward);
      return ownFlags(one, filters, vocabulary);
    };
    assert.deepEqual(flagged(0.49), [{ slot: 'post', name: 'low_reward', isEnforced: true }]);
    assert.deepEqual(flagged(0.5), []);
    assert.deepEqual(flagged(null), []);
    const metrics = filterMetrics(
      [0.2, 0.4, 0.5, 0.9].map((reward) => ({ flags: flagged(reward) })),
      filters,
    );
    assert.deepEqual(metrics, {
      'filter/low_reward_count': 2,
      'filter/low_reward_rate': 0.5,
      'filter/total_detected_rate': 0.5,
      'filter/total_enforced_rate': 0.5,
    });
  });

  test('the first filter of a list that matches counts, in each of the two lists', () => {
    const both = [strange, certain(4)];
    assert.deepEqual(names(both, repetition(false), gibberish(true)), ['repetition false']);
    const flags = ownFlags(
      { turns: both, reward: 1 },
      { pre: [gibberish(false)], post: [repetition(true)] },
      vocabulary,
    );
    assert.deepEqual(flags, [
      { slot: 'pre', name: 'gibberish', isEnforced: false },
      { slot: 'post', name: 'repetition', isEnforced: true },
    ]);
  });

  test('an advantage of 0 flags unless a filter before it did', () => {
    const flag: RolloutFlag = { slot: 'pre', name: 'repetition', isEnforced: false };
    const of = (...pre: RolloutFilterSpec[]) =>
      allFlags({ flags: [flag] }, { advantage: 0, filters: { pre, post: [] } }).map(({ name }) => name);
    assert.deepEqual(of(repetition(false), zeroAdvantage), ['repetition']);
    assert.deepEqual(of(zeroAdvantage, repetition(false)), ['zero_advantage']);
    assert.deepEqual(allFlags({}, { advantage: 0.1, filters: { pre: [zeroAdvantage], post: [] } }), []);
  });

  test('an enforced one takes the loss of its rollout away, which counts in the mean all the same', () => {
    const flags: RolloutFlag[] = [{ slot: 'post', name: 'gibberish', isEnforced: true }];
    const { samples, setAside } = packSamples([group(rollout(0, 1, flags), rollout(1, 0))], {
      advantage: 'centered',
      rolloutFilters: { pre: [], post: [gibberish(true)] },
    });
    assert.deepEqual([samples.length, setAside.filteredRollouts], [1, 1]);
    assert.equal(samples[0]!.advantages.at(-1), -0.5);
    const onlyCounted = packSamples([group(rollout(0, 1, [{ ...flags[0]!, isEnforced: false }]), rollout(1, 0))], {
      advantage: 'centered',
    });
    assert.equal(onlyCounted.samples.length, 2);
  });

  test('a group of which filters before the batch leave nothing makes room for another one', () => {
    const out: RolloutFlag[] = [{ slot: 'pre', name: 'repetition', isEnforced: true }];
    const later: RolloutFlag[] = [{ slot: 'post', name: 'repetition', isEnforced: true }];
    assert.equal(leavesNothing(group(rollout(0, 1, out), rollout(1, 0, out))), true);
    assert.equal(leavesNothing(group(rollout(0, 1, out), rollout(1, 0))), false);
    assert.equal(leavesNothing(group(rollout(0, 1, later), rollout(1, 0, later))), false);
  });

  test('metrics count what each filter flagged, and what was done about it', () => {
    const filters = { pre: [repetition(true), zeroAdvantage], post: [gibberish(false)] };
    const flagged = [
      { flags: [{ slot: 'pre', name: 'repetition', isEnforced: true }] },
      { flags: [{ slot: 'post', name: 'gibberish', isEnforced: false }] },
      { flags: [] },
      { flags: [] },
    ] as const;
    assert.deepEqual(filterMetrics(flagged, filters), {
      'filter/repetition_count': 1,
      'filter/repetition_rate': 0.25,
      'filter/zero_advantage_count': 0,
      'filter/zero_advantage_rate': 0,
      'filter/gibberish_count': 1,
      'filter/gibberish_rate': 0.25,
      'filter/total_detected_rate': 0.5,
      'filter/total_enforced_rate': 0.25,
    });
    assert.deepEqual(filterMetrics(flagged, { pre: [], post: [] }), {});
  });
});
