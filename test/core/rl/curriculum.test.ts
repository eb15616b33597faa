import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  type CurriculumState,
  initialCurriculum,
  leaseGroups,
  stateWithin,
} from '../../../core/rl/sampling/curriculum.ts';
import type { GroupLease } from '../../../core/rl/rollout/rollout.ts';

const two = [
  { name: 'easy', weight: 3, datasetLength: 7 },
  { name: 'hard', weight: 1, datasetLength: 5 },
];
const lease = (count: number, seed = 1, environments = two) =>
  leaseGroups(initialCurriculum, { count, environments, seed, policyStep: 0 }).leases;

describe('curriculum', () => {
  test('every example comes exactly once per epoch', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 40 }),
        fc.integer({ min: 1, max: 4 }),
        fc.nat(),
        (datasetLength, epochs, seed) => {
          const leases = lease(datasetLength * epochs, seed, [{ name: 'e', weight: 1, datasetLength }]);
          for (let epoch = 0; epoch < epochs; epoch++) {
            const ids = leases.filter((group) => group.epoch === epoch).map(({ exampleId }) => exampleId);
            assert.deepEqual(
              ids.toSorted((a, b) => a - b),
              [...Array.from({ length: datasetLength }).keys()],
            );
          }
        },
      ),
    );
  });

  test('the sequence of groups does not depend on how many were asked for at a time', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(12), { maxLength: 8 }), fc.nat(), (counts, seed) => {
        let state = initialCurriculum;
        const piecewise: GroupLease[] = [];
        for (const count of counts) {
          const next = leaseGroups(state, { count, environments: two, seed, policyStep: 0 });
          piecewise.push(...next.leases);
          state = JSON.parse(JSON.stringify(next.state)) as typeof state;
        }
        assert.deepEqual(piecewise, lease(piecewise.length, seed));
      }),
    );
  });

  test('ordinals count up from 1 and groups carry the version they start from', () => {
    const { state, leases } = leaseGroups(initialCurriculum, { count: 3, environments: two, seed: 4, policyStep: 9 });
    assert.deepEqual(
      leases.map(({ ordinal }) => ordinal),
      [1, 2, 3],
    );
    assert.deepEqual(
      leases.map(({ policyStep }) => policyStep),
      [9, 9, 9],
    );
    assert.equal(state.nextOrdinal, 4);
  });

  test('environments are drawn in proportion to their weights', () => {
    const easy = lease(20_000).filter(({ environment }) => environment === 'easy').length;
    assert.ok(Math.abs(easy / 20_000 - 0.75) < 0.01, `${easy} of 20000`);
  });

  test('which environment a group is of depends on seed and ordinal alone, and is the same on every machine', () => {
    const drawn = (groups: readonly GroupLease[]) => groups.map(({ environment }) => environment[0]).join('');
    assert.equal(drawn(lease(40, 7)), 'eeeeehheeeeeheheehhheeheeeeeeeeeeheeehee');
    const longer = two.map((environment) => ({ ...environment, datasetLength: 50 }));
    assert.equal(drawn(lease(40, 7, longer)), drawn(lease(40, 7)));
  });

  test('another seed gives another order', () => {
    assert.notDeepEqual(lease(12, 1), lease(12, 2));
  });

  test('an environment without examples is never drawn, and none with examples is said', () => {
    const withEmpty = [{ name: 'empty', weight: 9, datasetLength: 0 }, two[1]!];
    assert.ok(lease(50, 1, withEmpty).every(({ environment }) => environment === 'hard'));
    assert.throws(() => lease(1, 1, [withEmpty[0]!]), /No environment has examples/);
    assert.deepEqual(lease(0, 1, []), []);
  });
});

test('what a step leased says the state between its rounds, over the ends of epochs', () => {
  for (const seed of [0, 1, 2, 3]) {
    const environments = [
      { name: 'long', weight: 0.6, datasetLength: 7 },
      { name: 'short', weight: 0.3, datasetLength: 2 },
      { name: 'rare', weight: 0.1, datasetLength: 5 },
    ];
    let before = initialCurriculum;
    for (let step = 0; step < 4; step++) {
      const states: CurriculumState[] = [];
      const leases: GroupLease[] = [];
      let state = before;
      for (const count of [4, 1, 6, 2]) {
        const leased = leaseGroups(state, { count, environments, seed, policyStep: step });
        state = leased.state;
        states.push(state);
        leases.push(...leased.leases);
      }
      for (const one of states) assert.deepEqual(stateWithin([before, state], leases, one.nextOrdinal - 1), one);
      before = state;
    }
  }
});
