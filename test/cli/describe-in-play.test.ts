import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeInPlay } from '../../cli/describe/in-play.ts';
import type { CollectProgress } from '../../workflows/control/messages.ts';

const collecting: CollectProgress = {
  step: 6,
  round: 2,
  doing: 'generate',
  policyStep: 4,
  needed: 8,
  kept: 3,
  rollouts: { done: 10, of: 40 },
  dropped: {},
};

test('a status says what is in play by environment and age, and how much of the next batch is ready', () => {
  const inPlay = [
    { environment: 'slow', groups: 12, since: '2026-11-27T04:55:10.000Z', policyStep: 3 },
    { environment: 'quick', groups: 2, since: '2026-11-27T04:55:18.000Z', policyStep: 4 },
  ];
  assert.deepEqual(describeInPlay({ inPlay, collecting }), [
    'in play       14 groups: slow 12, the oldest since 2026-11-27T04:55:10.000Z from v3 · quick 2, the oldest since 2026-11-27T04:55:18.000Z from v4',
    'ready         3 of 8 groups for step 6',
  ]);
});

test('where nothing is sampled nothing is said of it', () => {
  assert.deepEqual(describeInPlay({ inPlay: [], collecting: null }), []);
  assert.deepEqual(describeInPlay({ inPlay: [], collecting: { ...collecting, doing: 'nothing' } }), []);
});
