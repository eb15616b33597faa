import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { initialCurriculum, leaseGroups, type CurriculumState } from '../../../core/rl/sampling/curriculum.ts';
import {
  chancesOf,
  describePools,
  poolMetrics,
  poolOf,
  poolSizes,
  sortIntoPools,
  type Pools,
} from '../../../core/rl/sampling/pools.ts';
import type { GroupLease, ScoredRollout } from '../../../core/rl/rollout/rollout.ts';
import type { PoolSpec } from '../../../config/run-spec.ts';

const spec: PoolSpec = { easyThreshold: 0.8, hardThreshold: 0.2, easyFraction: 0.25, hardFraction: 0 };
const words = { name: 'words', pools: spec, datasetLength: 40 };
const other = { name: 'other', pools: null, datasetLength: 40 };

function group(ordinal: number, exampleId: number, rewards: readonly (number | null)[], environment = 'words') {
  const rollouts = rewards.map((reward, index): ScoredRollout => {
    const place = { group: ordinal, index, exampleId, turns: [], metrics: {} };
    return reward === null ? { ...place, outcome: 'timeout', reward } : { ...place, outcome: 'ok', reward };
  });
  return { ordinal, exampleId, environment, rollouts };
}
const anyGroups = fc.array(
  fc.tuple(fc.nat(39), fc.array(fc.option(fc.constantFrom(0, 0.2, 0.5, 0.8, 1)), { minLength: 1, maxLength: 4 })),
  { maxLength: 30 },
);
const sorted = (groups: ReturnType<typeof group>[], before: Pools = {}) =>
  sortIntoPools(before, groups, [words, other]);

describe('difficulty pools', () => {
  test('both thresholds belong to their pools, what is between is normal, and easy wins where both hold', () => {
    assert.deepEqual(
      [1, 0.8, 0.79, 0.21, 0.2, -1].map((mean) => poolOf(mean, spec)),
      ['easy', 'easy', 'normal', 'normal', 'hard', 'hard'],
    );
    assert.equal(poolOf(5, { ...spec, easyThreshold: null }), 'normal');
    assert.equal(poolOf(0.5, { ...spec, easyThreshold: 0.5, hardThreshold: 0.5 }), 'easy');
  });

  test('an example moves with its latest group; one that is lost to failures moves nothing', () => {
    const easy = sorted([group(1, 7, [1, 1])]);
    assert.deepEqual(easy, { words: { easy: '7', hard: '' } });
    assert.deepEqual(sorted([group(2, 7, [0, 0])], easy), { words: { easy: '', hard: '7' } });
    assert.deepEqual(sorted([group(2, 7, [0, 1])], easy), { words: { easy: '', hard: '' } });
    assert.deepEqual(sorted([group(2, 7, [0, null])], easy), easy);
    assert.deepEqual(sorted([group(2, 7, [0, 0, 0, null])], easy), { words: { easy: '', hard: '7' } });
    assert.deepEqual(sorted([group(3, 7, [1]), group(2, 7, [0])]), easy, 'by ordinal, not by arrival');
    assert.deepEqual(sorted([group(1, 7, [1], 'other')]), {}, 'an environment without pools has none');
  });

  test('sizes add up to the dataset, and groups at once or one by one come to the same pools', () => {
    fc.assert(
      fc.property(anyGroups, (drawn) => {
        const groups = drawn.map(([exampleId, rewards], i) => group(i + 1, exampleId, rewards));
        const atOnce = sorted(groups);
        const oneByOne = groups.reduce<Pools>((pools, one) => sorted([one], pools), {});
        assert.deepEqual(oneByOne, atOnce);
        const { easy, normal, hard } = poolSizes(atOnce, words);
        assert.equal(easy + normal + hard, 40);
        assert.equal(poolMetrics(atOnce, [words, other])['pool/words/easy'], easy);
      }),
    );
  });

  test('metrics name each environment and the sum, and people read them in one line each', () => {
    const pools = sorted([group(1, 7, [1]), group(2, 3, [0]), group(3, 4, [0])]);
    const metrics = poolMetrics(pools, [words, { ...words, name: 'more' }, other]);
    assert.deepEqual(metrics, {
      'pool/words/easy': 1,
      'pool/words/normal': 37,
      'pool/words/hard': 2,
      'pool/more/easy': 0,
      'pool/more/normal': 40,
      'pool/more/hard': 0,
      'pool/easy': 1,
      'pool/normal': 77,
      'pool/hard': 2,
    });
    assert.deepEqual(describePools(metrics), ['words 1 easy, 37 normal, 2 hard', 'more 0 easy, 40 normal, 0 hard']);
  });
});

describe('drawing from pools', () => {
  const pools: Pools = { words: { easy: '0-9', hard: '10-14' } };
  const lease = (count: number, seed: number, from: CurriculumState = initialCurriculum) =>
    leaseGroups(from, {
      count,
      seed,
      policyStep: 0,
      environments: [{ ...words, weight: 1, chances: chancesOf(pools, words) }],
    });

  test('in an epoch a normal example comes once, an easy one at most once, and one whose fraction is 0 never', () => {
    fc.assert(
      fc.property(fc.nat(), fc.integer({ min: 1, max: 200 }), (seed, count) => {
        const { leases } = lease(count, seed);
        const last = leases.at(-1)!.epoch;
        for (let epoch = 0; epoch <= last; epoch++) {
          const ids = leases.filter((one) => one.epoch === epoch).map(({ exampleId }) => exampleId);
          assert.equal(new Set(ids).size, ids.length, 'nothing twice');
          assert.ok(ids.every((id) => id < 10 || id > 14));
          if (epoch < last) assert.equal(ids.filter((id) => id > 14).length, 25, 'every normal one');
        }
      }),
    );
  });

  test('easy examples are drawn a quarter as often as normal ones, as their fraction says', () => {
    const { leases } = lease(20_000, 5);
    const perExample = (first: number, last: number): number =>
      leases.filter(({ exampleId }) => exampleId >= first && exampleId <= last).length / (last - first + 1);
    const ratio = perExample(0, 9) / perExample(15, 39);
    assert.ok(Math.abs(ratio - 0.25) < 0.02, String(ratio));
  });

  test('the sequence does not depend on how many groups were asked for at a time', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(12), { maxLength: 8 }), fc.nat(), (counts, seed) => {
        let state = initialCurriculum;
        const piecewise: GroupLease[] = [];
        for (const count of counts) {
          const next = lease(count, seed, state);
          piecewise.push(...next.leases);
          state = JSON.parse(JSON.stringify(next.state)) as CurriculumState;
        }
        assert.deepEqual(piecewise, lease(piecewise.length, seed).leases);
      }),
    );
  });

  test('an environment whose examples are all put aside is not drawn while another has some', () => {
    const gone: Pools = { words: { easy: '', hard: '0-39' } };
    const environments = [
      { ...words, weight: 9, chances: chancesOf(gone, words) },
      { ...other, weight: 1 },
    ];
    const { leases } = leaseGroups(initialCurriculum, { count: 20, seed: 1, policyStep: 0, environments });
    assert.ok(leases.every(({ environment }) => environment === 'other'));
    assert.throws(
      () =>
        leaseGroups(initialCurriculum, { count: 1, seed: 1, policyStep: 0, environments: environments.slice(0, 1) }),
      /No environment has examples/,
    );
  });
});
