import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { rolloutPriority } from '../../../core/fleet/rollout-turns.ts';
import { priorityMax } from '../../../core/limits.ts';

const keyOf = (of: string): string => rolloutPriority({ of, rollouts: 1 }).fairnessKey;

test('a run of higher priority comes first; beyond two above or below the usual one all are alike', () => {
  const keys = [-priorityMax, -2, -1, 0, 1, 2, priorityMax].map(
    (priority) => rolloutPriority({ of: 'run', priority, rollouts: 1 }).priorityKey,
  );
  assert.deepEqual(keys, [5, 5, 4, 3, 2, 1, 1]);
  assert.equal(rolloutPriority({ of: 'run', rollouts: 1 }).priorityKey, 3);
});

test('work of twice the rollouts counts twice, and so does work of half the share', () => {
  const of = 'run';
  const one = rolloutPriority({ of, rollouts: 64 }).fairnessWeight;
  assert.equal(rolloutPriority({ of, rollouts: 128 }).fairnessWeight, one / 2);
  assert.equal(rolloutPriority({ of, rollouts: 128, share: 2 }).fairnessWeight, one);
  assert.equal(rolloutPriority({ of, rollouts: 64, share: 1 / 2 }).fairnessWeight, one / 2);
});

test('whatever is asked for, Temporal takes it', () => {
  const work = fc.record({
    of: fc.string({ unit: 'binary', maxLength: 200 }),
    priority: fc.integer({ min: -priorityMax, max: priorityMax }),
    share: fc.double({ min: 1e-6, max: 1e6, noNaN: true }),
    rollouts: fc.double({ min: 0, max: 1e6, noNaN: true }),
  });
  fc.assert(
    fc.property(work, (one) => {
      const { priorityKey, fairnessKey, fairnessWeight } = rolloutPriority(one);
      assert.ok([1, 2, 3, 4, 5].includes(priorityKey));
      assert.ok(Buffer.byteLength(fairnessKey) <= 64);
      assert.ok(fairnessWeight >= 0.001 && fairnessWeight <= 1000);
    }),
  );
});

test('runs have keys of their own, also where their ids are long or have other letters', () => {
  assert.equal(keyOf('reverse-text.1'), 'reverse-text.1');
  const ids = ['a', 'b', 'x'.repeat(64), `${'x'.repeat(64)}1`, `${'x'.repeat(64)}2`, 'größe', 'gräße'];
  assert.equal(new Set(ids.map(keyOf)).size, ids.length);
});
