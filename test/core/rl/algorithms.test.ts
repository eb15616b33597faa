import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { groupAdvantages } from '../../../core/rl/learning/advantage.ts';
import { groupSolved, judgeGroup, solvedCounts } from '../../../core/rl/filters/difficulty.ts';
import { nextBeta } from '../../../core/rl/learning/kl-controller.ts';
import { readFileSync } from 'node:fs';
import { learningRateAt, temperatureAt } from '../../../core/rl/sampling/schedule.ts';
import { stepMetrics } from '../../../core/rl/metrics.ts';
import { isStale, oldestStepOf, staleness } from '../../../core/rl/sampling/staleness.ts';
import { factsOfGroup } from '../../../core/rl/rollout/group-facts.ts';

const near = (actual: number, expected: number, tolerance = 1e-9) =>
  assert.ok(Math.abs(actual - expected) <= tolerance, `${actual} is not ${expected}`);
const reward = fc.double({ min: -10, max: 10, noNaN: true });
const rewards = fc.array(fc.oneof({ weight: 5, arbitrary: reward }, { weight: 1, arbitrary: fc.constant(null) }), {
  minLength: 1,
  maxLength: 16,
});

describe('advantages', () => {
  test("centred advantages agree with prime-rl's worked example", () => {
    assert.deepEqual(groupAdvantages([1, 0, 0.5, 1], 'centered'), [0.375, -0.625, -0.125, 0.375]);
  });

  test('normalized advantages divide by the standard deviation of the sample and 1e-4, as TRL and verifiers do', () => {
    const [up, down] = groupAdvantages([1, 0, 0, 0], 'std_normalized');
    near(up!, 0.75 / 0.5001);
    near(down!, -0.25 / 0.5001);
    assert.deepEqual(groupAdvantages([1], 'std_normalized'), [0]);
  });

  test('max_rl divides by the mean, as prime-rl’s MaxRLAlgorithm (559b44772) computes it', () => {
    assert.deepEqual(groupAdvantages([1, 0, 0, 0], 'max_rl'), [3, -1, -1, -1]);
    assert.deepEqual(groupAdvantages([0.5, 0.25, 0, 0.75, 1], 'max_rl'), [0, -0.5, -1, 0.5, 1]);
    for (const [i, expected] of [0.3333333432674408, 0.3333333432674408, 0.3333333432674408, -1].entries()) {
      assert.ok(Math.abs(groupAdvantages([1, 1, 1, 0], 'max_rl')[i]! - expected) < 1e-7);
    }
    for (const group of [
      [0, 0, 0],
      [1, -2, 0],
    ]) {
      assert.ok(groupAdvantages(group, 'max_rl').every((advantage) => advantage === 0));
    }
  });

  test('advantages of a group sum to zero, with either kind', () => {
    fc.assert(
      fc.property(rewards, fc.constantFrom('centered' as const, 'std_normalized' as const), (group, kind) => {
        const advantages = groupAdvantages(group, kind);
        const size = Math.max(1, ...advantages.map(Math.abs));
        near(
          advantages.reduce((sum, advantage) => sum + advantage, 0),
          0,
          1e-9 * size * group.length,
        );
      }),
    );
  });

  test('a rollout without a reward has advantage 0 and does not move the baseline of its siblings', () => {
    fc.assert(
      fc.property(fc.array(reward, { minLength: 1, maxLength: 8 }), fc.nat(8), (group, at) => {
        const place = Math.min(at, group.length);
        const without = groupAdvantages(group, 'std_normalized');
        const withNull = groupAdvantages([...group.slice(0, place), null, ...group.slice(place)], 'std_normalized');
        assert.deepEqual(withNull.toSpliced(place, 1), without);
        assert.equal(withNull[place], 0);
      }),
    );
  });

  test('equal rewards give advantages of exactly 0, also where their sum is not exact', () => {
    fc.assert(
      fc.property(reward, fc.integer({ min: 1, max: 16 }), (value, count) => {
        const advantages = groupAdvantages(
          Array.from({ length: count }, () => value),
          'std_normalized',
        );
        assert.ok(advantages.every((advantage) => advantage === 0));
      }),
    );
  });
});

describe('difficulty', () => {
  const open = { minRewardVariance: 0, minReward: -1e9, maxReward: 1e9, onlineDifficultyFiltering: false };
  const dropped = (reason: string) => ({ kept: false, reason });

  test('bounds are inclusive: a mean of exactly max_reward or min_reward is kept', () => {
    const filter = { ...open, minReward: 0.25, maxReward: 0.75 };
    assert.deepEqual(judgeGroup([1, 0.5], filter), { kept: true });
    assert.deepEqual(judgeGroup([0, 0.5], filter), { kept: true });
    assert.deepEqual(judgeGroup([1, 0.51], filter), dropped('too_easy'));
    assert.deepEqual(judgeGroup([0, 0.49], filter), dropped('too_hard'));
  });

  test('a variance of exactly min_reward_variance is kept, anything less is dropped', () => {
    const filter = { ...open, minRewardVariance: 0.25 };
    assert.deepEqual(judgeGroup([0, 1], filter), { kept: true });
    assert.deepEqual(judgeGroup([0, 0.9], filter), dropped('low_variance'));
  });

  test('online difficulty filtering drops groups that are all right or all wrong, and only those', () => {
    const filter = { ...open, onlineDifficultyFiltering: true };
    assert.deepEqual(judgeGroup([1, 1], filter), dropped('too_easy'));
    assert.deepEqual(judgeGroup([0, 0], filter), dropped('too_hard'));
    assert.deepEqual(judgeGroup([1, 0.999], filter), { kept: true });
  });

  test('rewards that differ by rounding alone are equal', () => {
    for (const rewards of [
      [0.1 + 0.2, 0.3],
      [0.3 - 0.1 - 0.2, 0],
      [1e6 * (0.1 + 0.2), 3e5],
      [-0.7 - 0.1, -0.8],
    ]) {
      assert.ok(rewards[0] !== rewards[1]);
      assert.deepEqual(judgeGroup(rewards, open), dropped('no_signal'), String(rewards));
      for (const kind of ['centered', 'std_normalized', 'max_rl'] as const)
        assert.deepEqual(groupAdvantages(rewards, kind), [0, 0]);
    }
    assert.deepEqual(judgeGroup([1e-6, 2e-6], open), { kept: true });
    assert.deepEqual(judgeGroup([1, 1 + 1e-6], open), { kept: true });
  });

  test('a reward that is no number drops its rollout, and not its group', () => {
    assert.deepEqual(judgeGroup([1, NaN, 0], open), { kept: true });
    assert.deepEqual(judgeGroup([1, Infinity, 1], open), dropped('no_signal'));
    assert.deepEqual(judgeGroup([NaN, NaN], open), dropped('no_signal'));
    assert.deepEqual(groupAdvantages([1, NaN, 0], 'centered'), [0.5, 0, -0.5]);
  });

  test('a group without any advantage is dropped even when no filter is set', () => {
    assert.deepEqual(judgeGroup([0.3, 0.3, 0.3], open), dropped('no_signal'));
    assert.deepEqual(judgeGroup([0.3, null], open), dropped('no_signal'));
    assert.deepEqual(judgeGroup([null, null], open), dropped('no_signal'));
    assert.deepEqual(judgeGroup([], open), dropped('no_signal'));
  });

  test('a kept group always has a rollout with an advantage', () => {
    fc.assert(
      fc.property(rewards, (group) => {
        if (judgeGroup(group, open).kept)
          assert.ok(groupAdvantages(group, 'centered').some((advantage) => advantage !== 0));
      }),
    );
  });

  test('groups count as solved by all, none or some of their rewarded rollouts', () => {
    assert.equal(groupSolved([1, 1, null]), 'all');
    assert.equal(groupSolved([0, 0]), 'none');
    assert.equal(groupSolved([0, 1]), 'some');
    assert.deepEqual(solvedCounts([[1], [0], [0.5], [null]]), { all: 1, none: 1, some: 1 });
  });
});

describe('learning rate', () => {
  const linear = { type: 'linear' as const, warmupSteps: 5, minRatio: 0.05 };

  test('it rises to its peak in the warm-up and falls towards its last fraction', () => {
    const at = (step: number) => learningRateAt({ step, maxSteps: 100, peak: 1e-3, schedule: linear });
    near(at(1), 2e-4);
    near(at(5), 1e-3);
    near(at(6), 1e-3);
    near(at(100), 1e-3 * (0.05 + 0.95 / 95));
    near(at(101), at(100));
    assert.ok(at(7) < at(6) && at(99) > at(100));
  });

  test('the last step trains, also where there is no other: 1 / (N − w) of the peak, as in transformers', () => {
    const toZero = { type: 'linear' as const, warmupSteps: 4, minRatio: 0 };
    // [lr_lambda(n - 1)] of get_linear_schedule_with_warmup(optimizer, 4, 20)
    for (const [step, rate] of [
      [5, 1],
      [6, 0.9375],
      [12, 0.5625],
      [20, 0.0625],
    ] as const) {
      near(learningRateAt({ step, maxSteps: 20, peak: 1, schedule: toZero }), rate, 1e-12);
    }
    for (const type of ['linear', 'cosine'] as const) {
      const schedule = { type, warmupSteps: 0, minRatio: 0 };
      assert.equal(learningRateAt({ step: 1, maxSteps: 1, peak: 2, schedule }), 2);
    }
    const late = { type: 'linear' as const, warmupSteps: 0, minRatio: 0, decaySteps: 4 };
    const rates = [15, 16, 17, 18, 19, 20].map((step) =>
      learningRateAt({ step, maxSteps: 20, peak: 1, schedule: late }),
    );
    assert.deepEqual(rates, [1, 1, 1, 0.75, 0.5, 0.25]);
  });

  test("the cosine schedule agrees with transformers' get_cosine_schedule_with_warmup(optimizer, 4, 20)", () => {
    const schedule = { type: 'cosine' as const, warmupSteps: 4, minRatio: 0 };
    const golden = [
      [1, 0.25],
      [4, 1],
      [5, 1],
      [6, 0.990392640202],
      [11, 0.691341716183],
      [13, 0.5],
      [20, 0.009607359798],
      [25, 0.009607359798],
    ] as const;
    for (const [step, rate] of golden) near(learningRateAt({ step, maxSteps: 20, peak: 1, schedule }), rate, 1e-12);
    const floored = { ...schedule, minRatio: 0.1 };
    near(learningRateAt({ step: 13, maxSteps: 20, peak: 2, schedule: floored }), 1.1);
    near(learningRateAt({ step: 20, maxSteps: 20, peak: 2, schedule: floored }), 0.2 + 1.8 * 0.009607359798);
  });

  test('without a warm-up the first step has nearly the full rate, and a constant one stays', () => {
    const schedule = { type: 'constant' as const, warmupSteps: 0, minRatio: 0 };
    assert.equal(learningRateAt({ step: 1, maxSteps: 10, peak: 2, schedule }), 2);
    assert.equal(learningRateAt({ step: 10, maxSteps: 10, peak: 2, schedule }), 2);
  });

  test('it is positive and at most its peak in every step', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 500 }),
        fc.nat(50),
        fc.double({ min: 0, max: 1, noNaN: true }),
        fc.constantFrom('linear' as const, 'cosine' as const),
        (n, w, r, type) => {
          const schedule = { type, warmupSteps: Math.min(w, n), minRatio: r };
          for (let step = 1; step <= n; step++) {
            const rate = learningRateAt({ step, maxSteps: n, peak: 1, schedule });
            assert.ok(rate > 0 && rate <= 1, `step ${step}: ${rate}`);
          }
        },
      ),
    );
  });
});

describe('staleness', () => {
  test('a group that begins with the version a step trains on top of is not stale', () => {
    assert.equal(staleness(1, 0), 0);
    assert.equal(staleness(5, 3), 1);
  });

  test('a group is dropped one version beyond the limit, not at it', () => {
    assert.equal(isStale(3, 6, 2), false);
    assert.equal(isStale(2, 6, 2), true);
    assert.equal(isStale(5, 6, 0), false);
  });

  test('how far off policy a batch is counts from the oldest version, whatever its turns continued with', () => {
    const turn = { promptTokenIds: [1], tokenIds: [2], logprobs: [-1], text: '', finishReason: 'stop' } as const;
    const turns = [
      { ...turn, policyStep: 3, policyStepEnd: 4 },
      { ...turn, policyStep: 4 },
    ];
    const rollouts = [{ group: 1, index: 0, exampleId: 0, turns, outcome: 'ok', reward: 1, metrics: {} }] as const;
    const leased = { ordinal: 1, environment: 'e', exampleId: 0, epoch: 0, policyStep: 3, rollouts };
    const later = turns.map((one) => ({ ...one, policyStep: 5 }));
    const fresh = { ...leased, ordinal: 2, rollouts: [{ ...rollouts[0], turns: later }] }; // leased at v3, and begun late
    const trained = [leased, fresh];
    const filter = { minReward: 0, maxReward: 1, minRewardVariance: 0, onlineDifficultyFiltering: false };
    const facts = trained.map((group) => factsOfGroup(group));
    const metrics = stepMetrics({ step: 6, finished: facts, trained: facts, filter, environments: ['e'] });
    assert.deepEqual([metrics['off_policy/max'], metrics['off_policy/mean']], [2, 1]);
    assert.deepEqual(
      trained.map((group) => isStale(oldestStepOf(group), 6, 1)),
      [true, false],
    );
  });
});

describe('KL controller', () => {
  const target = { beta: 0.1, targetKl: 0.01 };

  test('the coefficient doubles above 1.5 times the target and halves below two thirds of it', () => {
    assert.equal(nextBeta({ ...target, measuredKl: 0.0151 }), 0.2);
    assert.equal(nextBeta({ ...target, measuredKl: 0.0066 }), 0.05);
    assert.equal(nextBeta({ ...target, measuredKl: 1.5 * 0.01 }), 0.1);
    assert.equal(nextBeta({ ...target, measuredKl: 0.01 / 1.5 }), 0.1);
  });

  test('it does not move without a target, without a coefficient, or on a KL that is not a number', () => {
    assert.equal(nextBeta({ beta: 0.1, targetKl: null, measuredKl: 9 }), 0.1);
    assert.equal(nextBeta({ beta: 0, targetKl: 0.01, measuredKl: 9 }), 0);
    assert.equal(nextBeta({ ...target, measuredKl: Number.NaN }), 0.1);
  });
});

describe('a temperature that has a course', () => {
  const golden = JSON.parse(readFileSync(new URL('../../data/algorithms/golden.json', import.meta.url), 'utf8')) as {
    readonly temperatures: readonly {
      readonly schedule: Readonly<Record<'type' | 'start_temperature' | 'end_temperature' | 'total_steps', unknown>>;
      readonly max_steps: number;
      readonly temperatures: readonly number[];
    }[];
  };

  test('is at every version what prime-rl 0.4’s compute_temperature gives', () => {
    for (const { schedule, max_steps: maxSteps, temperatures } of golden.temperatures) {
      const temperatureSchedule = {
        type: schedule.type as 'linear' | 'cosine',
        startTemperature: Number(schedule.start_temperature),
        endTemperature: Number(schedule.end_temperature),
        totalSteps: schedule.total_steps as number | null,
      };
      for (const [version, expected] of temperatures.entries()) {
        near(temperatureAt(version, { temperatureSchedule, maxSteps })!, expected, 1e-12);
      }
    }
    assert.equal(temperatureAt(0, { maxSteps: 3 }), undefined);
  });
});
