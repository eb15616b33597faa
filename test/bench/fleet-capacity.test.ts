import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { busySeconds, countedSteps, idleOf, jainOf, readTrace, stepsPossible } from '../../bench/fleet-capacity.ts';

const line = (step: number, from: number, until: number, pid = 1) => ({ step, pid, from: from * 1000, until: until * 1000 }); // prettier-ignore
const life = (readyAt: number, endedAt: number) => ({ pid: 1, readyAt: readyAt * 1000, endedAt: endedAt * 1000 });

test("Jain's index is 1 for equal shares, and 1/n where one has everything", () => {
  assert.equal(jainOf([5, 5, 5, 5]), 1);
  assert.equal(jainOf([8, 0, 0, 0]), 0.25);
  assert.equal(jainOf([0, 0]), 1);
});

test('a step counts once, the first time, and only where it is committed and within the window', () => {
  const lines = [line(1, 0, 4), line(2, 4, 8), line(2, 9, 13), line(3, 14, 18)];
  const counted = countedSteps(lines, 2);
  assert.deepEqual(counted, [line(1, 0, 4), line(2, 4, 8)]);
  assert.equal(busySeconds(counted, { from: 2_000, to: 7_000 }), 5);
});

test('what was possible is bound at each moment by the scarcer of trainers and rollout workers', () => {
  const speeds = { stepS: 4, stepsOfWorker: 0.125 };
  const window = { from: 0, to: 40_000 };
  const four = Array.from({ length: 4 }, () => life(-1, Infinity));
  assert.equal(stepsPossible({ trainers: [life(-1, Infinity), life(0, 20)], workers: four }, speeds, window), 15);
  assert.equal(stepsPossible({ trainers: [life(-1, Infinity)], workers: [life(10, 30)] }, speeds, window), 2.5);
  assert.equal(stepsPossible({ trainers: [], workers: four }, speeds, window), 0);
});

test('idle time is told apart by whether the run stays the same', () => {
  const of = (run: string, ...rest: Parameters<typeof line>) => ({ run, ...line(...rest) });
  const lines = [of('a', 1, 0, 4), of('a', 2, 5, 9), of('b', 1, 12, 16), of('c', 1, 0, 1, 2), of('c', 2, 1, 9, 2)];
  assert.deepEqual(idleOf(lines, { from: 0, to: 20_000 }), { within_run_s: 1, steps: 2, between_runs_s: 3, hand_overs: 1 }); // prettier-ignore
});

test('the trace of spot capacity begins and ends with all machines', () => {
  const rows = readTrace(fileURLToPath(new URL('../../bench/spot-trace.csv', import.meta.url)));
  assert.deepEqual(rows[0], { second: 0, trainers: 2, workers: 8 });
  assert.deepEqual([rows.at(-1)!.trainers, rows.at(-1)!.workers], [2, 8]);
  assert.ok(rows.some(({ trainers }) => trainers === 1) && rows.some(({ workers }) => workers === 2));
});
