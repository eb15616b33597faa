import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { CountedSlots } from '../../workers/roles/gated-slots.ts';
import { LoadSlots, withinLoad } from '../../workers/roles/load-slots.ts';
import { containerOf, MachineLoad } from '../../workers/roles/machine-load.ts';
import { until } from '../eventually.ts';

const never = new AbortController().signal;
const about = {} as Parameters<LoadSlots['reserveSlot']>[0];
const given = { permit: {} };

test('a worker takes one piece of work whatever the load, and more only while the load is below the target', async () => {
  const load = { cpu: 0.95, memory: 0.2 };
  const slots = new LoadSlots(new CountedSlots(3), { cpu: 0.9, memory: 0.8 }, () => load);
  await slots.reserveSlot(about, never);
  let taken = 1;
  const asking = slots.reserveSlot(about, never).then(() => (taken += 1));
  await delay(300);
  assert.equal(taken, 1, 'the processors are busy');
  assert.equal(slots.tryReserveSlot(about), null);
  load.cpu = 0.5;
  await asking;
  load.memory = 0.85;
  await delay(100);
  assert.equal(slots.tryReserveSlot(about), null, 'memory is full');
  slots.releaseSlot(given);
  slots.releaseSlot(given);
  await slots.reserveSlot(about, never); // nothing else is under way
});

test('the number of slots behind it still bounds, and what was begun shows before more begins', async () => {
  const slots = new LoadSlots(new CountedSlots(2), { cpu: 0.9 }, () => ({ cpu: 0, memory: 1 }));
  assert.notEqual(slots.tryReserveSlot(about), null);
  assert.equal(slots.tryReserveSlot(about), null, 'too soon after the one before');
  await slots.reserveSlot(about, never);
  await delay(100);
  assert.equal(slots.tryReserveSlot(about), null, 'there are two');
  slots.releaseSlot(given);
  await until('a slot is free', () => slots.tryReserveSlot(about) !== null);
});

test('a poll that is not needed any more gives its place back', async () => {
  const counted = new CountedSlots(2);
  const slots = new LoadSlots(counted, { cpu: 0.9 }, () => ({ cpu: 1, memory: 0 }));
  await slots.reserveSlot(about, never);
  const stop = new AbortController();
  const asking = slots.reserveSlot(about, stop.signal);
  stop.abort(new Error('enough'));
  await assert.rejects(asking, /enough/);
  assert.notEqual(counted.tryReserveSlot(), null, 'the place behind it is free');
});

test('without a target the slots are as they were', () => {
  const counted = new CountedSlots(1);
  assert.equal(withinLoad(counted, undefined), counted);
});

test('the load is measured over the time between looks, of the container where that has less than the machine', () => {
  const state = { at: 0, busy: 0, all: 0, seconds: 0 };
  const load = new MachineLoad({
    now: () => state.at,
    processors: () => ({ busy: state.busy, all: state.all }),
    container: () => ({ seconds: state.seconds, processors: 2 }),
    memory: () => 0.25,
  });
  Object.assign(state, { at: 1_000, busy: 3_000, all: 10_000, seconds: 1.5 });
  assert.deepEqual(load.read(), { cpu: 0.75, memory: 0.25 });
  Object.assign(state, { at: 1_100, busy: 9_000, all: 11_000, seconds: 3 });
  assert.deepEqual(load.read(), { cpu: 0.75, memory: 0.25 }, 'too soon for another measurement');
  Object.assign(state, { at: 2_000, busy: 12_000, all: 20_000, seconds: 1.7 });
  assert.deepEqual(load.read(), { cpu: 0.9, memory: 0.25 });
});

test('the limit of a container is read from its control group', () => {
  const files = (max: string) => (file: string) => (file === 'cpu.max' ? max : 'usage_usec 2500000\nuser_usec 1\n');
  assert.deepEqual(containerOf(files('150000 100000\n')), { seconds: 2.5, processors: 1.5 });
  assert.equal(containerOf(files('max 100000\n')), null);
  assert.equal(
    containerOf(() => {
      throw new Error('ENOENT');
    }),
    null,
  );
});
