/** The one player of training, evaluations and searches: which groups it begins, and when each is handed on. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { generateGroups } from '../../play/generate-groups.ts';
import { byGroup, GroupsInPlay } from '../../play/groups-in-play.ts';
import { Slots } from '../../play/slots.ts';

const members = [1, 1, 2, 2, 3].map((group, i) => ({ group, i }));
const groups = byGroup(members, ({ group }) => group);

test('a group is handed on once, when its last rollout has ended; one of which none is missing at once', () => {
  const ended: [group: number, played: number][] = [];
  const inPlay = new GroupsInPlay((group, { playedS }) => void ended.push([group, playedS.length]));
  for (const [group, missing] of [
    [1, 2],
    [2, 0],
    [3, 1],
  ] as const)
    inPlay.add(group, missing);
  assert.deepEqual(ended, [[2, 0]]);
  inPlay.finish(1, 0.5);
  inPlay.finish(3, null);
  assert.deepEqual(ended.slice(1), [[3, 0]], 'what was given up took no time');
  inPlay.finish(1, 0.25);
  assert.deepEqual(ended.slice(2), [[1, 2]]);
});

test('members of a group are begun together, and are told its name and how many they are', async () => {
  const told: string[] = [];
  await generateGroups({
    groups,
    nameOf: ({ group }) => group,
    room: new Slots(2),
    stop: new AbortController().signal,
    generate: async ({ i }, { group, size }) => void told.push(`${i} ${group.split('/').at(-1)!} of ${size}`),
  });
  assert.deepEqual(told, ['0 1 of 2', '1 1 of 2', '2 2 of 2', '3 2 of 2', '4 3 of 1']);
});

test('where they may begin alone, the next begins as soon as one has ended, and a group is waited for once', async () => {
  const under: number[] = [];
  const ends = new Map<number, () => void>();
  let waits = 0;
  const playing = generateGroups({
    groups,
    nameOf: ({ group }) => group,
    areAlone: () => true,
    room: new Slots(3),
    stop: new AbortController().signal,
    begin: async () => void (waits += 1),
    generate: ({ i }, { size }) => {
      under.push(10 * i + size);
      return new Promise((resolve) => ends.set(i, resolve));
    },
  });
  await turn();
  assert.deepEqual(under, [2, 12, 22], 'one of the second group is there, too');
  ends.get(1)!();
  await turn();
  assert.deepEqual(under, [2, 12, 22, 32]);
  for (const i of [0, 2, 3]) ends.get(i)!();
  await turn();
  ends.get(4)!();
  await playing;
  assert.equal(waits, 3);
});

test('when one fails no other group is begun, those under way are waited for, and the failure is thrown', async () => {
  const ended: number[] = [];
  const playing = generateGroups({
    groups,
    nameOf: ({ group }) => group,
    room: new Slots(2),
    stop: new AbortController().signal,
    async generate({ i }, { brokenOff }) {
      if (i === 0) throw new Error('the server is away');
      await new Promise<void>((resolve) => brokenOff!.addEventListener('abort', () => resolve()));
      ended.push(i);
    },
  });
  await assert.rejects(playing, /the server is away/);
  assert.deepEqual(ended, [1]);
});

test('stopping is no failure, whatever the rollouts under way throw of it', async () => {
  const stop = new AbortController();
  let begun = 0;
  await generateGroups({
    groups,
    nameOf: ({ group }) => group,
    room: new Slots(2),
    stop: stop.signal,
    async generate() {
      begun += 1;
      stop.abort(new Error('cancelled'));
      throw stop.signal.reason;
    },
  });
  assert.ok(begun <= 2);
});
