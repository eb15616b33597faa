import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { simulateRatchet, type SimulatedRun } from '../../../bench/simulated-sampling.ts';
import { groupsAwaited, leastStepS, overtakenMax, staleBudgetAfter } from '../../../core/rl/sampling/late-groups.ts';
import type { KeptGroups } from '../../../core/rl/run-state.ts';

const kept = (ordinals: string, policyStep = 20): KeptGroups => {
  return { ordinals, policyStep, scored: { key: '', sha256: '', bytes: 0 } };
};
const batch = {
  step: 21,
  trained: [kept('101-116')],
  inPlay: [],
  surplus: [],
  groupsPerBatch: 16,
  maxOffPolicySteps: 8,
  staleBudget: 0,
};
const inPlay = (count: number, first: number, policyStep: number) =>
  Array.from({ length: count }, (_, i) => ({ ordinal: first + i, policyStep }));

describe('groups that a batch waits for', () => {
  test('the first batches take groups in the order of their issue but for a few, later ones less strictly', () => {
    assert.deepEqual([overtakenMax(1, 16), overtakenMax(10, 16)], [2.4, 2.4]);
    assert.ok(overtakenMax(30, 16) > 16);
    assert.equal(overtakenMax(1, 2), 1, 'one that hangs stops nobody');
    const first = { ...batch, step: 5 };
    assert.equal(groupsAwaited({ ...first, inPlay: inPlay(2, 1, 4) }), 0);
    assert.equal(groupsAwaited({ ...first, inPlay: inPlay(5, 1, 4) }), 3);
    assert.equal(groupsAwaited({ ...first, inPlay: inPlay(50, 117, 4) }), 0, 'younger ones hold up nobody');
  });

  test('a step waits for groups that would be too old for the next one, but for as many as may grow stale', () => {
    const old = inPlay(3, 1, 12); // v12 is trained in step 21 at the latest
    assert.equal(groupsAwaited({ ...batch, inPlay: inPlay(3, 1, 13) }), 0);
    assert.equal(groupsAwaited({ ...batch, inPlay: old }), 3);
    assert.equal(groupsAwaited({ ...batch, inPlay: old, staleBudget: 1.9 }), 2);
    assert.equal(groupsAwaited({ ...batch, inPlay: old, staleBudget: -2 }), 3);
    assert.equal(
      groupsAwaited({ ...batch, inPlay: old, staleBudget: 3, surplus: [kept('117-118', 12)] }),
      2,
      'those that wait and will be too old are lost whatever is waited for',
    );
  });

  test('two in a hundred may grow stale: what is not used is kept for a while, and what was too much is made up for', () => {
    const after = (before: number, ended: number, stale: number) =>
      staleBudgetAfter(before, { ended, stale, groupsPerBatch: 16 });
    assert.equal(after(0, 100, 0), 2);
    assert.equal(after(0, 100, 3), -1);
    assert.equal(after(5, 10_000, 0), 5.12);
    assert.equal(after(-5, 100, 50), -5.12);
    assert.equal(staleBudgetAfter(0, { ended: 1000, stale: 0, groupsPerBatch: 1 }), 1);
  });

  test('the least step lets all but two in a hundred groups be trained', () => {
    const seconds = Array.from({ length: 100 }, (_, i) => i + 1);
    assert.equal(leastStepS(seconds, 8), 99 / 8);
  });
});

describe('what is trained of rollouts with a tail', () => {
  const tail: SimulatedRun = {
    seed: 1,
    steps: 40,
    groupsPerBatch: 16,
    rolloutsPerExample: 8,
    trainS: 1,
    level: 2,
    maxOffPolicySteps: 8,
    keptShare: 1,
    medianS: 1,
    sigma: 1.2,
    hardness: 2,
    slower: 1,
  };

  test('a tenth of the groups grows stale without a rule, and two in a hundred with it', () => {
    const staleOf = (rules: 'none' | 'unbiased'): number => {
      const { groups } = simulateRatchet(tail, rules);
      return groups.filter(({ fate }) => fate === 'stale').length / groups.length;
    };
    assert.ok(staleOf('none') > 0.08, `${staleOf('none')}`);
    assert.ok(staleOf('unbiased') <= 0.021, `${staleOf('unbiased')}`);
  });

  test('without a tail nothing waits', () => {
    const steady = { ...tail, sigma: 0, hardness: 0, medianS: 3 };
    for (const level of [1, 8]) {
      const [before, after] = (['none', 'unbiased'] as const).map((rules) =>
        simulateRatchet({ ...steady, level }, rules),
      );
      assert.equal(after!.seconds, before!.seconds);
    }
  });

  test('what a filter drops is sampled beside a batch, and steps do not wait for it', () => {
    const filtered = { ...tail, sigma: 0.5, keptShare: 0.45 };
    const [before, after] = (['none', 'unbiased'] as const).map((rules) => simulateRatchet(filtered, rules).seconds);
    assert.ok(after! < 0.65 * before!, `${after} s, ${before} s before`);
  });
});
