import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { eachGroup } from '../../play/each-group.ts';
import { Slots, slotsOf } from '../../play/slots.ts';

const never = new AbortController().signal;

describe('room for rollouts', () => {
  test('members of a group are let in together, in the order in which they asked', async () => {
    const slots = new Slots(4);
    const inside: string[] = [];
    const ask = (name: string, count: number) => void slots.take(count, never).then(() => inside.push(name));
    ask('a', 3);
    ask('b', 2);
    ask('c', 1);
    await turn();
    assert.deepEqual([inside, slots.wanted], [['a'], 6], 'c waits behind b, which has no room');
    slots.give();
    await turn();
    assert.deepEqual(inside, ['a', 'b']);
    slots.give(2);
    await turn();
    assert.deepEqual([inside, slots.wanted], [['a', 'b', 'c'], 3]);
  });

  test('a group larger than all the room is let in alone', async () => {
    const slots = new Slots(2);
    await slots.take(8, never);
    let isIn = false;
    void slots.take(1, never).then(() => (isIn = true));
    slots.give(7);
    await turn();
    assert.equal(isIn, true);
  });

  test('whoever waits and is told to stop takes no room, and those behind are let in', async () => {
    const slots = new Slots(2);
    await slots.take(2, never);
    const stop = new AbortController();
    const waiting = slots.take(2, stop.signal);
    let isIn = false;
    void slots.take(1, never).then(() => (isIn = true));
    stop.abort(new Error('enough'));
    await assert.rejects(waiting, /enough/);
    slots.give();
    await turn();
    assert.deepEqual([isIn, slots.wanted], [true, 2]);
  });

  test('a run has the same room whoever asks, as wide as was said last', () => {
    const slots = slotsOf('run', 4);
    assert.equal(slotsOf('run', 8), slots);
    assert.equal(slots.limit, 8);
    assert.notEqual(slotsOf('another run', 4), slots);
  });

  test('a slow environment takes what others leave, and never what is kept for them', async () => {
    const slots = slotsOf('of two', 16, { slow: 2, quick: 2 });
    const inside: string[] = [];
    const ask = (name: string) =>
      void slots
        .of(name)
        .take(2, never)
        .then(() => inside.push(name));
    for (let group = 0; group < 10; group++) ask('slow');
    await turn();
    assert.equal(inside.length, 7, 'of 16 it has 14, though its weight is a half');
    ask('quick');
    ask('quick');
    await turn();
    assert.deepEqual(inside.slice(7), ['quick'], 'what is kept for it, and no more');
    slots.of('quick').give(2);
    await turn();
    assert.deepEqual(inside.slice(8), ['quick']);
    slots.of('slow').give(2);
    await turn();
    assert.deepEqual(inside.slice(9), ['slow'], 'else whoever asked first');
  });
});

describe('groups one after another', () => {
  const play = (groups: readonly (readonly string[])[], work: (member: string) => Promise<void>, stop = never) => {
    const slots = [new Slots(2), new Slots(3)];
    const brokenOff = new AbortController();
    const begin = () => Promise.resolve();
    return { slots, brokenOff, all: eachGroup(groups, { slots, stop, brokenOff, begin }, work) };
  };

  test('no more are played at once than there is room for, and all of it is given back', async () => {
    let [atOnce, most] = [0, 0];
    const { slots, all } = play([['a', 'b'], ['c', 'd'], ['e']], async () => {
      most = Math.max(most, ++atOnce);
      await turn();
      atOnce -= 1;
    });
    await all;
    assert.deepEqual([most, slots.map(({ wanted }) => wanted)], [2, [0, 0]]);
  });

  test('when one fails no other group is begun, those under way are waited for, and nothing keeps its room', async () => {
    const begun: string[] = [];
    const { slots, brokenOff, all } = play(
      [
        ['a', 'b'],
        ['c', 'd'],
      ],
      async (member) => {
        begun.push(member);
        await turn();
        if (member === 'a') throw new Error('a broke');
      },
    );
    await assert.rejects(all, /a broke/);
    assert.deepEqual([begun, brokenOff.signal.aborted], [['a', 'b'], true]);
    assert.deepEqual(
      slots.map(({ wanted }) => wanted),
      [0, 0],
    );
  });

  test('stopping is no failure', async () => {
    const stop = new AbortController();
    const begun: string[] = [];
    const { slots, all } = play(
      [['a', 'b'], ['c']],
      async (member) => {
        begun.push(member);
        stop.abort();
        await turn();
      },
      stop.signal,
    );
    await all;
    assert.deepEqual([begun, slots.map(({ wanted }) => wanted)], [['a'], [0, 0]]);
  });
});
