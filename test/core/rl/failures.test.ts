import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { RatchetError } from '../../../core/errors.ts';
import { judgeGroup, meanBins, meanHistogram, widenedBounds } from '../../../core/rl/difficulty.ts';
import {
  addFailures,
  breakerAmong,
  breakerReason,
  countFailures,
  describeFailures,
  noFailures,
  onlyRow,
  outcomeOfFailure,
} from '../../../core/rl/failures.ts';
import { packSamples } from '../../../core/rl/pack.ts';
import { failedOutcomes, type FailedOutcome, type ScoredGroup, type ScoredRollout } from '../../../core/rl/rollout.ts';
import { secretValues, withoutSecrets } from '../../../core/spec/secrets.ts';

const place = { group: 1, index: 0, exampleId: 0, turns: [], metrics: {} };
const rollout = (outcome: FailedOutcome | number, error = ''): ScoredRollout =>
  typeof outcome === 'number'
    ? { ...place, outcome: 'ok', reward: outcome }
    : { ...place, outcome, reward: null, error };
const group = (ordinal: number, rollouts: readonly ScoredRollout[]): ScoredGroup => ({
  ordinal,
  environment: 'words',
  exampleId: 0,
  epoch: 0,
  policyStep: 0,
  rollouts,
});
const anyOutcome = fc.oneof(fc.constantFrom(...failedOutcomes), fc.constantFrom(0, 0.5, 1));
const anyGroups = fc.array(fc.array(anyOutcome, { minLength: 1, maxLength: 4 }), { maxLength: 12 }).map((groups) =>
  groups.map((outcomes, i) =>
    group(
      i + 1,
      outcomes.map((outcome) => rollout(outcome)),
    ),
  ),
);

describe('outcomes', () => {
  test('no failed rollout can carry a reward, and no rewarded one can lack it: the compiler says so', () => {
    // @ts-expect-error A reward of 0 for an environment that broke would train the policy away from what it did.
    const poisoned: ScoredRollout = { ...place, outcome: 'infra_failure', reward: 0 };
    // @ts-expect-error
    const lost: ScoredRollout = { ...place, outcome: 'ok', reward: null };
    assert.ok(poisoned.reward === 0 && lost.reward === null); // they exist here only because the checks were silenced
  });

  test('out of memory is told apart from other failures, in the words of every runtime', () => {
    for (const text of [
      'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB',
      'Non-zero status code returned while running MatMul node: Failed to allocate memory for requested buffer',
      'std::bad_alloc',
      'FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory',
      'No available memory for the cache blocks.',
      'the child was killed by SIGKILL',
    ]) {
      assert.equal(outcomeOfFailure(new Error(text)), 'oom', text);
    }
    assert.equal(outcomeOfFailure(new Error('the memory of the sandbox is fine, its disk is not')), 'infra_failure');
    assert.equal(outcomeOfFailure(new RatchetError('OutOfMemory', '507')), 'oom');
    assert.equal(outcomeOfFailure(new RatchetError('PromptTooLong', '400')), 'overlong_prompt');
    assert.equal(outcomeOfFailure(new RatchetError('InferenceRejected', '401')), 'rejected');
    assert.equal(outcomeOfFailure(new RatchetError('InferenceUnavailable', '503')), null, "everyone's trouble");
  });
});

describe('the breaker', () => {
  const limits = { maxFailedShare: 0.5, maxFailedGroups: 3 };
  const broken = rollout('infra_failure', 'Error: sandbox is gone\n    at play');

  test('however a round is cut in parts, the parts add up to it', () =>
    fc.assert(
      fc.property(anyGroups, fc.nat(12), (groups, at) => {
        const parts = addFailures(countFailures(groups.slice(0, at)), countFailures(groups.slice(at)));
        assert.deepEqual(parts, countFailures(groups));
        assert.deepEqual(addFailures(noFailures, parts), parts);
      }),
    ));

  test('of a traceback what was said and where it was thrown is told, not the way there', () => {
    const said = 'Error: no disk left\n    at play (my-env.ts:30:19)\n    at score (score.ts:67:49)\n    at async all';
    const { causes } = countFailures([group(1, [rollout('infra_failure', said)])]);
    assert.equal(causes.infra_failure?.first, 'Error: no disk left\n    at play (my-env.ts:30:19)');
    const endless = countFailures([group(1, [rollout('infra_failure', 'x'.repeat(5_000))])]).causes.infra_failure!
      .first;
    assert.ok(endless.length <= 600 && endless.endsWith('…'));
  });

  test('every rollout without a reward is counted under one cause', () =>
    fc.assert(
      fc.property(anyGroups, (groups) => {
        const { causes, failedRollouts, failedGroups } = countFailures(groups);
        const all = groups.flatMap(({ rollouts }) => rollouts);
        assert.equal(failedRollouts, all.filter(({ reward }) => reward === null).length);
        assert.equal(
          Object.values(causes).reduce((sum, { count }) => sum + count, 0),
          failedRollouts,
        );
        assert.ok(failedGroups <= failedRollouts && failedGroups <= groups.length);
      }),
    ));

  test('prompts that are too long are their examples’ own: they never open it, and hide nothing', () => {
    const overlong = (ordinal: number) => group(ordinal, [rollout('overlong_prompt', 'The prompt has 9 tokens')]);
    const failed = (ordinal: number) => group(ordinal, [broken, broken]);
    const long = Array.from({ length: 9 }, (_, i) => overlong(i));
    const counted = countFailures(long);
    assert.equal(breakerReason(counted, limits), null);
    assert.deepEqual([counted.failedRollouts, counted.failedGroups, counted.causes.overlong_prompt?.count], [9, 0, 9]);
    const all = [...long, failed(20), failed(21)];
    assert.match(
      breakerReason(countFailures(all), limits) ?? '',
      /4 of 4 rollouts failed/,
      'of those that could be played',
    );
    const row = [failed(1), overlong(2), failed(3), overlong(4), failed(5)];
    const open = { maxFailedShare: 1, maxFailedGroups: 3 };
    assert.match(breakerReason(countFailures(row), open) ?? '', /3 groups in a row/);
  });

  test('it opens above the share, and after so many groups in a row; one group alone never opens it', () => {
    const whole = (ordinal: number) => group(ordinal, [rollout(1), rollout(0)]);
    const failed = (ordinal: number) => group(ordinal, [broken, broken]);
    assert.equal(breakerReason(countFailures([failed(1)]), limits), null);
    assert.equal(breakerReason(countFailures([failed(1), failed(2), whole(3), whole(4)]), limits), null);
    assert.match(breakerReason(countFailures([failed(1), whole(2), failed(3)]), limits) ?? '', /4 of 6 rollouts.*67%/);
    const row = [whole(1), whole(2), whole(3), whole(4), failed(5), failed(6), failed(7)];
    assert.match(breakerReason(countFailures(row), limits) ?? '', /3 groups in a row/);
    assert.equal(breakerReason(countFailures([...row, whole(8)]), limits), null);
  });

  test('the report names every cause with its count, the first words of it, and what helps', () => {
    const groups = [
      group(1, [broken, rollout('oom', 'CUDA out of memory')]),
      group(2, [rollout('infra_failure', 'another'), rollout(1)]),
    ];
    const [first, second] = describeFailures(countFailures(groups).causes);
    assert.match(first ?? '', /^2 × environment errors \(infra_failure\), the first: Error: sandbox is gone/);
    assert.match(second ?? '', /^1 × out of memory.*fewer rollouts at once.*\[lora\].*micro_batch_size.*more memory/);
  });
});

describe('signal', () => {
  test('every group with a reward is in one bin of the histogram', () =>
    fc.assert(
      fc.property(fc.array(fc.array(fc.option(fc.double({ min: -1, max: 2, noNaN: true })))), (groups) => {
        const counts = meanHistogram(groups);
        const rewarded = groups.filter((rewards) => rewards.some((reward) => reward !== null)).length;
        assert.equal(
          counts.reduce((sum, count) => sum + count, 0),
          rewarded,
        );
        assert.equal(counts.length, meanBins.length);
      }),
    ));

  test('the widened filter keeps exactly the groups whose rewards differ', () =>
    fc.assert(
      fc.property(fc.array(fc.integer({ min: -3, max: 3 }), { minLength: 1 }), (rewards) => {
        assert.equal(judgeGroup(rewards, widenedBounds()).kept, new Set(rewards).size > 1);
      }),
    ));

  test('rewards too large to be compared are dropped before they make a gradient of NaN', () => {
    const verdict = judgeGroup([Number.MAX_VALUE, -Number.MAX_VALUE], widenedBounds());
    assert.deepEqual(verdict, { kept: false, reason: 'non_finite' });
  });

  test('a batch says how many of its tokens have an advantage, and takes nothing that is not finite', () => {
    const turn = { promptTokenIds: [1], tokenIds: [2, 3], logprobs: [-1, -1], text: '', policyStep: 0 };
    const said = (reward: number, logprob = -1): ScoredRollout => ({
      ...place,
      outcome: 'ok',
      reward,
      turns: [{ ...turn, finishReason: 'stop', logprobs: [-1, logprob] }],
    });
    const signal = (rollouts: readonly ScoredRollout[]) =>
      packSamples([group(1, rollouts)], { advantage: 'centered' }).stats.signalTokens;
    assert.equal(signal([said(1), said(0)]), 4);
    assert.equal(signal([said(0.3), said(0.3)]), 0);
    assert.throws(() => signal([said(1), said(0, Number.NaN)]), /log probability NaN/);
    assert.throws(() => signal([said(1), said(Number.NaN)]), /not be trained/);
  });
});

test('a traceback is kept without secrets: known shapes, and what the environment holds under their names', () => {
  const values = secretValues({ JUDGE_API_KEY: 'correct horse', PATH: '/usr/bin', OTHER_TOKEN: 'ab' });
  assert.deepEqual(values, ['correct horse']);
  const clean = withoutSecrets('401 for correct horse (sk-0123456789abcdef) in /usr/bin', values);
  assert.equal(clean, '401 for [secret] ([secret]) in /usr/bin');
});

describe('the breaker of a run with several environments', () => {
  const limits = { maxFailedShare: 0.5, maxFailedGroups: 10 };
  const round = (outcomes: readonly (FailedOutcome | number)[]) =>
    countFailures(outcomes.map((outcome, i) => group(i + 1, [rollout(outcome, 'no disk left')])));
  const well = round([1, 1, 1, 1, 1, 1]);

  test('one that fails altogether is named, however small its share of the round', () => {
    const broken = round(['infra_failure', 'infra_failure']);
    const all = addFailures(well, broken);
    assert.equal(breakerReason(all, limits), null);
    const found = breakerAmong(
      all,
      new Map([
        ['maths', well],
        ['tools', broken],
      ]),
      limits,
    );
    assert.match(found!.reason, /^tools: 2 of 2 rollouts failed/);
    assert.deepEqual([found!.environment, Object.keys(found!.causes)], ['tools', ['infra_failure']]);
    assert.equal(breakerAmong(well, new Map([['maths', well]]), limits), null);
  });

  test('one that is drawn once in a step, and fails every time, is found when as many failed in a row', () => {
    let before = noFailures;
    for (let step = 1; step <= 9; step++) {
      before = addFailures(onlyRow(before), round(['timeout']));
      assert.equal(breakerReason(before, { ...limits, maxFailedShare: 1 }), null, `step ${step}`);
    }
    const tenth = addFailures(onlyRow(before), round(['timeout']));
    assert.match(breakerReason(tenth, { ...limits, maxFailedShare: 1 })!, /^10 groups in a row failed/);
    const mended = addFailures(onlyRow(before), round([1, 'timeout']));
    assert.equal(mended.failedGroupsInRow, 1);
  });
});
