import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
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

test('a worker that has leases asks once at a time, so that an idle one gets what comes', async () => {
  const slots = new Slots(64);
  const permits = new PlaySlots(slots);
  slots.enter(4);
  await permits.reserveSlot(about, never);
  await permits.reserveSlot(about, never); // nothing is known to be held here
  permits.markSlotUsed({ slotInfo: playGroups });
  let asks = 0;
  for (let i = 0; i < 3; i++) void permits.reserveSlot(about, never).then(() => (asks += 1));
  await turn();
  assert.equal(asks, 0, 'one poll waits');
  permits.markSlotUsed({ slotInfo: playGroups });
  await turn();
  assert.equal(asks, 1, 'it has brought something, and the next one waits');
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
