import assert from 'node:assert/strict';
import { test } from 'node:test';
import { enterChunk, roomOfRun } from '../../play/chunk-room.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';

const never = new AbortController().signal;
let runs = 0;

/** A run of `maxConcurrent` rollouts in groups of 4 that two workers share. */
function shared(maxConcurrent: number | null) {
  const run = { name: `run-${++runs}`, store: 'file:/outputs', lineage: 'main' };
  const spec = { environments: [{ name: 'agent' }], rolloutsPerExample: 4, maxConcurrent } as unknown as RunSpec;
  const input = { run: run as RunHandle, workers: 2, chunk: { index: 0, count: 1, groups: 1 } };
  return { input, room: roomOfRun(input, spec), enter: () => enterChunk(input, spec) };
}

test('a chunk fits while all of its rollouts can begin beside those of the run here', async () => {
  const { enter, room } = shared(16);
  assert.equal(room.limit, 8);
  const first = enter();
  await room.take(4, never);
  first.begun();
  assert.equal(enter().fits, true, '4 of 8 are in flight');
  assert.equal(enter().fits, false, '4 are in flight and 4 have come');
});

test('chunks that come at once count before they have slots, until they begin or are passed on', async () => {
  const { enter, room } = shared(8);
  const [first, second] = [enter(), enter()];
  assert.deepEqual([first.fits, second.fits], [true, false]);
  second.begun();
  second.begun();
  await room.take(4, never);
  first.begun();
  assert.equal(enter().fits, false);
  room.give(4);
});

test('a chunk that waits has room once a rollout before it has ended, and the one after it has none', async () => {
  const { enter, room } = shared(8);
  await room.take(4, never);
  const [first, second] = [enter(), enter()];
  assert.deepEqual([first.hasRoom(), second.hasRoom()], [false, false]);
  room.give();
  assert.deepEqual([first.hasRoom(), second.hasRoom()], [true, false]);
  first.begun();
  assert.equal(second.hasRoom(), true);
});

test('the only chunk of a run fits, also if it is larger than the room', () => {
  assert.equal(shared(2).enter().fits, true);
  const { enter } = shared(null);
  assert.deepEqual(
    Array.from({ length: 9 }, () => enter().fits),
    Array.from({ length: 9 }, () => true),
  );
});
