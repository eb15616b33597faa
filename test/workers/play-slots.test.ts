import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn, setTimeout as delay } from 'node:timers/promises';
import { Slots } from '../../play/slots.ts';
import { PlaySlots } from '../../workers/roles/play-slots.ts';

const never = new AbortController().signal;
const playGroups = { type: 'activity', activityType: 'playGroups' } as const;
const about = {} as Parameters<PlaySlots['reserveSlot']>[0];

test('a worker asks for another lease while it has room for one like the newest, and again when a rollout ends', async () => {
  const slots = new Slots(64);
  const permits = new PlaySlots(slots);
  await permits.reserveSlot(about, never);
  let isAskingTwice = false;
  const second = new AbortController();
  void permits.reserveSlot(about, second.signal).then(
    () => (isAskingTwice = true),
    () => undefined,
  );
  await turn();
  assert.equal(isAskingTwice, false, 'how much the first lease brings is not known yet');
  second.abort(new Error('enough'));
  permits.markSlotUsed({ slotInfo: playGroups });
  const leave = slots.enter(32);
  await slots.take(32, never);
  await permits.reserveSlot(about, never); // 32 are in, 32 more fit
  permits.markSlotUsed({ slotInfo: playGroups });
  let isAsking = false;
  void permits.reserveSlot(about, never).then(() => (isAsking = true));
  await turn();
  assert.equal(isAsking, false, 'the one that came may bring 32');
  slots.give();
  await turn();
  assert.equal(isAsking, true);
  permits.releaseSlot({});
  permits.releaseSlot({ slotInfo: playGroups });
  leave();
});

test('a worker asks once at a time, so that an idle one gets what comes', async () => {
  const permits = new PlaySlots(new Slots(64));
  let asks = 0;
  const ask = (): void => void permits.reserveSlot(about, never).then(() => (asks += 1));
  ask();
  ask();
  await turn();
  assert.equal(asks, 1, 'one poll waits');
  permits.markSlotUsed({ slotInfo: { type: 'activity', activityType: 'askTeacher' } });
  await turn();
  assert.equal(asks, 2, 'it has brought something, and the next one waits');
});

test('a worker that leaves the next leases to others asks again afterwards', async () => {
  const slots = new Slots(64);
  const permits = new PlaySlots(slots);
  slots.rest(5);
  slots.rest(10);
  let isAsking = false;
  const asked = permits.reserveSlot(about, never).then(() => (isAsking = true));
  await turn();
  assert.equal(isAsking, false);
  await Promise.all([asked, delay(10)]); // the timer of the rest keeps no process alive
});

test('a poll that is not needed any more gives its place in the line back', async () => {
  const slots = new Slots(1);
  const permits = new PlaySlots(slots);
  await slots.take(1, never);
  const stop = new AbortController();
  const waiting = permits.reserveSlot(about, stop.signal);
  stop.abort(new Error('not needed'));
  await assert.rejects(waiting, /not needed/);
});
