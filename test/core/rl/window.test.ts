import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chunksInPlayMax, partsPerBatch, runStateBytesMax } from '../../../core/limits.ts';
import { uniform } from '../../../core/random.ts';
import {
  chunkGroups,
  haveTail,
  inPlayOf,
  issuedPerBatch,
  type JudgedGroups,
  judgedLately,
  leastRoom,
  levelOf,
  roomInWindow,
  secondsCovered,
  trainableGroups,
  windowGroups,
} from '../../../core/rl/sampling/window.ts';
import type { KeptGroups, OpenRound } from '../../../core/rl/run-state.ts';

const unmeasured = { playS: null, batchS: null, inPlay: null, occupancy: 1 };
const quick = { playS: 0.3, batchS: 0.5, inPlay: null, occupancy: 1 };
const slow = { playS: 12, batchS: 2, inPlay: null, occupancy: 0.2 };
const window = {
  groupsPerBatch: 64,
  level: 2,
  oversamplingFactor: 1,
  stepsLeft: 100,
  stepsToEnd: 100,
  within: 8,
  maxConcurrent: null,
  rolloutsPerExample: 8,
};
const chunk = { groupsPerBatch: 64, window: 192, workers: 1, isShared: false };

test('sampling is never further ahead than groups may be old', () => {
  assert.equal(levelOf({ maxAsyncLevel: 64, maxOffPolicySteps: 8 }), 8);
  assert.equal(levelOf({ maxAsyncLevel: 2, maxOffPolicySteps: 8 }), 2);
  assert.equal(levelOf({ maxAsyncLevel: 1, maxOffPolicySteps: 0 }), 0, 'on-policy, as at level 0');
});

test('the window holds what becomes ready while a round is in play, up to the level and to the last step', () => {
  assert.equal(windowGroups({ ...window, pace: slow }), 3 * 64);
  assert.equal(windowGroups({ ...window, level: 64, pace: slow }), 8 * 64);
  assert.equal(windowGroups({ ...window, level: 64, pace: unmeasured }), 3 * 64);
  assert.equal(windowGroups({ ...window, stepsLeft: 2, pace: slow }), 2 * 64);
  assert.equal(windowGroups({ ...window, stepsLeft: 1, pace: slow }), 64);
  assert.equal(windowGroups({ ...window, oversamplingFactor: 1.5, pace: slow }), 3 * 64 + 32);
});

test('the window holds no more than keeps the trainer busy: what waits for it grows old', () => {
  const groups = (inPlay: number, level = 8) => windowGroups({ ...window, level, pace: { ...slow, inPlay } });
  assert.equal(groups(0), 2 * 64, 'quick rollouts are a batch ahead, whatever the level');
  assert.equal(groups(0, 1), 2 * 64);
  assert.equal(groups(64), 64 + 74 + 16);
  assert.equal(groups(64, 1), 2 * 64);
  assert.equal(windowGroups({ ...window, level: 8, stepsLeft: 2, pace: { ...slow, inPlay: 640 } }), 2 * 64);
  // The window grows while all of it is in flight, up to the level.
  let size = groups(0);
  for (let batches = 0; batches < 12; batches++) size = groups(size);
  assert.equal(size, 9 * 64);
});

/**
 * A trainer of so many seconds a step beside groups whose slowest of eight rollouts is log-normal, with time that only events move.
 *
 * @returns share of the time in which it trains, and how many versions its groups are behind on average, after 20 steps of 120.
 */
function simulate({ level, trainS, meanS, sigma }: { level: number; trainS: number; meanS: number; sigma: number }) {
  const from = 20;
  let [now, version, drawn, batchAt, integral, begun] = [0, 0, 0, 0, 0, 0];
  let trainedAt: number | null = null;
  let playing: { readonly end: number; readonly version: number }[] = [];
  let ready: number[] = [];
  const [inPlays, ages]: [number[], number[]] = [[], []];
  const latency = (): number => {
    const of = Array.from({ length: window.rolloutsPerExample }, () => {
      const [length, angle] = [uniform('length', (drawn += 1)), uniform('angle', drawn)];
      return Math.sqrt(-2 * Math.log(1 - length)) * Math.cos(2 * Math.PI * angle);
    });
    return meanS * Math.exp(sigma * Math.max(...of) - sigma ** 2 / 2);
  };
  while (version < 120) {
    const inPlay = inPlays.length === 0 ? null : Math.max(...inPlays.slice(-4));
    const size = windowGroups({ ...window, level, pace: { ...unmeasured, inPlay } });
    while (playing.length + ready.length < size) playing.push({ end: now + latency(), version });
    if (trainedAt === null && ready.length >= window.groupsPerBatch) {
      if (version === from) begun = now;
      if (now > batchAt) inPlays.push(integral / (now - batchAt));
      [integral, batchAt, trainedAt] = [0, now, now + trainS];
      const batch = ready.slice(0, window.groupsPerBatch);
      ready = ready.slice(window.groupsPerBatch);
      if (version >= from) ages.push(...batch.map((sampled) => version - sampled));
      continue;
    }
    const next = Math.min(trainedAt ?? Infinity, ...playing.map(({ end }) => end));
    integral += playing.length * (next - now);
    now = next;
    if (trainedAt !== null && trainedAt <= now) [trainedAt, version] = [null, version + 1];
    ready.push(...playing.filter(({ end }) => end <= now).map((group) => group.version));
    playing = playing.filter(({ end }) => end > now);
  }
  return {
    busy: ((version - from) * trainS) / (now - begun),
    age: ages.reduce((sum, age) => sum + age, 0) / ages.length,
  };
}

test('with it the trainer waits for nothing, and trains what is fresh, however high the level is', () => {
  for (const [meanS, ageMax] of [
    [0.15, 2],
    [0.5, 2.4],
    [2, 5.3],
  ] as const) {
    const { busy, age } = simulate({ level: 8, trainS: 2.2, meanS, sigma: 1 });
    assert.ok(busy > 0.98 && age <= ageMax, `mean ${meanS} s: busy ${busy}, ${age} versions behind`);
  }
  const { age } = simulate({ level: 2, trainS: 1, meanS: 2, sigma: 1 });
  assert.ok(age > 2.8, 'where rollouts are slow the window is as large as the level lets it be');
});

test('where it is said how many rollouts are in flight, the window is no smaller than that takes, while they can be trained', () => {
  const said = { ...window, maxConcurrent: 512, pace: slow };
  assert.equal(windowGroups(said), 400 + 64, 'a fifth of what is leased is in flight');
  assert.equal(windowGroups({ ...said, within: 5 }), 5 * 64);
  assert.equal(windowGroups({ ...said, stepsLeft: 2, stepsToEnd: 4 }), 4 * 64);
  assert.equal(windowGroups({ ...said, maxConcurrent: 8 }), 3 * 64);
});

test('a chunk of slow rollouts has a few groups, one of quick ones half a batch', () => {
  assert.equal(chunkGroups({ ...chunk, pace: slow }), 4);
  assert.equal(chunkGroups({ ...chunk, pace: slow, isShared: true }), 1, 'another run waits for no more');
  assert.equal(chunkGroups({ ...chunk, pace: quick }), 32);
  assert.equal(chunkGroups({ ...chunk, pace: quick, workers: 16 }), 2, 'every worker has two');
  assert.equal(chunkGroups({ ...chunk, pace: unmeasured }), 32);
  assert.equal(chunkGroups({ ...chunk, groupsPerBatch: 2, window: 6, pace: slow }), 1);
});

test('whatever is asked for, no more chunks are in play than a commit can name', () => {
  for (const groupsPerBatch of [1, 7, 64, 4096]) {
    for (const level of [1, 2, 8, 64]) {
      for (const pace of [unmeasured, quick, slow, { playS: 900, batchS: 0.1, inPlay: null, occupancy: 0.5 }]) {
        const asked = { ...window, groupsPerBatch, level, oversamplingFactor: 3, stepsLeft: 1000, stepsToEnd: 1000 };
        const held = windowGroups({ ...asked, maxConcurrent: 16_384, pace });
        const groups = chunkGroups({ groupsPerBatch, window: held, workers: 1, pace, isShared: true });
        assert.ok(groups >= 1 && held / groups <= chunksInPlayMax, `${held} groups, ${groups} a chunk`);
      }
    }
  }
});

test('whatever the level, a commit holds a full window, also when all of it waits while nothing is trained', () => {
  const sha256 = 'f'.repeat(64);
  const key =
    'lineages/l12/rollouts/step_12345/groups_1234567-1234630/chunk_reverse-text_12_of_16_from_1234567.scored.jsonl.gz';
  const scored = { key, sha256, bytes: 123_456, count: 1 };
  const kept: KeptGroups = { scored, policyStep: 12_345, ordinals: '1234567', oldest: [12_340], sizes: [123_456] };
  const round: OpenRound = { step: 12_345, first: 1_234_567, last: 1_234_630, leases: sha256, groups: '1234567' };
  const windowMax = windowGroups({
    ...window,
    level: 64,
    stepsLeft: 1000,
    stepsToEnd: 1000,
    pace: { ...slow, playS: 900 },
  });
  assert.equal(windowMax, 65 * 64);
  const surplus = Array.from({ length: (windowMax / window.groupsPerBatch) * partsPerBatch }, () => kept);
  const open = Array.from({ length: chunksInPlayMax }, () => round);
  const bytes = JSON.stringify({ surplus, open }).length;
  assert.ok(bytes < runStateBytesMax, `${bytes} bytes`);
  assert.ok(runStateBytesMax < 2 * 1024 * 1024, "Temporal's limit of a payload");
});

test('there is room until the window is full, the chunks are, or as many rollouts are played as the config says', () => {
  const room = {
    window: 192,
    held: 100,
    trainable: 1000,
    heldInAll: 130,
    playing: 60,
    chunks: 15,
    chunkGroups: 4,
    rolloutsPerExample: 8,
    maxConcurrent: null,
    pace: { occupancy: 1 },
  };
  assert.equal(roomInWindow(room), 92);
  assert.equal(roomInWindow({ ...room, chunks: chunksInPlayMax - 3 }), 12);
  assert.equal(roomInWindow({ ...room, maxConcurrent: 512 }), 20);
  assert.equal(
    roomInWindow({ ...room, maxConcurrent: 512, pace: { occupancy: 0.5 } }),
    92,
    'half of what is leased is in flight',
  );
  assert.equal(roomInWindow({ ...room, maxConcurrent: 100 }), 0);
  assert.equal(roomInWindow({ ...room, playing: 0, chunks: 0, maxConcurrent: 1 }), 1, 'a group is played at least');
  assert.equal(roomInWindow({ ...room, held: 200 }), 0);
  assert.equal(roomInWindow({ ...room, trainable: 150 }), 20, 'stragglers are trained too');
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

test('rounds of two chunks are leased while most of a large window is in play, of any size where nothing is', () => {
  const of = (window: number, inPlay: number, size: number) => leastRoom({ window, inPlay, chunkGroups: size });
  assert.deepEqual([of(144, 140, 4), of(96, 90, 4), of(16, 15, 4), of(16, 15, 1)], [8, 6, 4, 1]);
  assert.deepEqual([of(144, 20, 4), of(144, 0, 4)], [4, 0]);
});

test('where groups have a tail the window follows what is in play on average, else the batch with most', () => {
  const batches = [
    { inPlay: 100, seconds: 1 },
    { inPlay: 20, seconds: 9 },
  ];
  assert.equal(inPlayOf([], false), null);
  assert.deepEqual([inPlayOf(batches, false), inPlayOf(batches, true)], [100, 28]);
  assert.deepEqual(
    [haveTail([]), haveTail([3, 3, 3]), haveTail([1, 2, 3, 4]), haveTail([1, 2, 3, 20])],
    [false, false, false, true],
  );
});

test('no more groups are held than can be trained before they are too old, half as many where they have a tail', () => {
  const of = {
    groupsPerBatch: 16,
    step: 12,
    policyStep: 10,
    maxOffPolicySteps: 8,
    hasTail: false,
    maxConcurrent: null,
  };
  assert.equal(trainableGroups(of), 8 * 16, 'v10 may be trained in the steps 12 … 19');
  assert.equal(trainableGroups({ ...of, hasTail: true }), 4 * 16);
  assert.equal(trainableGroups({ ...of, hasTail: true, maxConcurrent: 64 }), 8 * 16, 'they are begun later');
  assert.equal(trainableGroups({ ...of, hasTail: true, maxOffPolicySteps: 1, step: 11 }), 2 * 16);
});

test('what a filter will drop is issued beside what a batch takes, four times a batch at most', () => {
  const judged = (groups: number, kept: number) => [{ groups, kept }];
  assert.equal(issuedPerBatch(16, [], 'full'), 16);
  assert.equal(issuedPerBatch(16, judged(8, 2), 'full'), 16, 'too few to tell');
  assert.equal(issuedPerBatch(16, judged(40, 18), 'full'), 36);
  assert.equal(issuedPerBatch(16, judged(40, 0), 'full'), 64);
  for (const fill of ['half', 'once'] as const) assert.equal(issuedPerBatch(16, judged(40, 18), fill), 16);
  let lately: readonly JudgedGroups[] = [];
  for (let i = 0; i < 200; i++) lately = judgedLately(lately, { groups: 1, kept: i < 136 ? 0 : 1 }, 16);
  assert.deepEqual([lately.length, issuedPerBatch(16, lately, 'full')], [64, 16], 'the newest tell');
});
