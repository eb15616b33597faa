import assert from 'node:assert/strict';
import { test } from 'node:test';
import { openRoundsMax } from '../../../core/limits.ts';
import { isContinuous, leaseGroups, secondsCovered, windowGroups } from '../../../core/rl/window.ts';

const unmeasured = { roundS: null, batchS: null };
const quick = { roundS: 0.3, batchS: 0.5 };
const slow = { roundS: 12, batchS: 2 };
const window = { groupsPerBatch: 64, level: 2, oversamplingFactor: 1, stepsLeft: 100 };
const lease = { groupsPerBatch: 64, window: 192, rolloutsPerExample: 8, maxConcurrent: null };

test('level 0 is sampled step by step, level 1 while its rounds are quick, and what is further ahead continuously', () => {
  const continuous = [0, 1, 2, 64].map((level) => [quick, slow].map((pace) => isContinuous(level, pace, false)));
  assert.deepEqual(continuous, [
    [false, false],
    [false, true],
    [true, true],
    [true, true],
  ]);
  assert.equal(isContinuous(1, unmeasured, false), false);
  assert.equal(isContinuous(64, slow, true), false, 'examples that are begun at a given pace are begun round by round');
});

test('the window holds what becomes ready while a round is in play, up to the level and to the last step', () => {
  assert.equal(windowGroups({ ...window, pace: slow }), 3 * 64);
  assert.equal(windowGroups({ ...window, level: 64, pace: slow }), 8 * 64);
  assert.equal(windowGroups({ ...window, level: 64, pace: unmeasured }), 3 * 64);
  assert.equal(windowGroups({ ...window, stepsLeft: 2, pace: slow }), 2 * 64);
  assert.equal(windowGroups({ ...window, stepsLeft: 1, pace: slow }), 64);
  assert.equal(windowGroups({ ...window, oversamplingFactor: 1.5, pace: slow }), 3 * 64 + 32);
});

test('slow rollouts are leased a few at a time, quick ones a batch at a time', () => {
  assert.equal(leaseGroups({ ...lease, pace: slow }), 4);
  assert.equal(leaseGroups({ ...lease, pace: quick }), 64);
  assert.equal(leaseGroups({ ...lease, pace: unmeasured }), 16);
  assert.equal(leaseGroups({ ...lease, groupsPerBatch: 2, window: 6, pace: slow }), 1);
  assert.equal(leaseGroups({ ...lease, window: 64, maxConcurrent: 32, pace: slow }), 2);
});

test('whatever is asked for, no more rounds are open than a commit can name', () => {
  for (const groupsPerBatch of [1, 7, 64, 4096]) {
    for (const level of [1, 2, 8, 64]) {
      for (const pace of [unmeasured, quick, slow, { roundS: 900, batchS: 0.1 }]) {
        for (const maxConcurrent of [null, 1, 100]) {
          const held = windowGroups({ groupsPerBatch, level, oversamplingFactor: 3, stepsLeft: 1000, pace });
          const groups = leaseGroups({ groupsPerBatch, window: held, rolloutsPerExample: 8, maxConcurrent, pace });
          assert.ok(groups >= 1 && held / groups <= openRoundsMax, `${held} groups, ${groups} a lease`);
        }
      }
    }
  }
});

test('time that several rounds took side by side counts once', () => {
  assert.equal(secondsCovered([]), 0);
  assert.equal(
    secondsCovered([
      [5, 7],
      [0, 2],
      [1, 4],
      [6, 6.5],
    ]),
    6,
  );
});
