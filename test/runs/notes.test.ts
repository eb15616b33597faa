/** Notes of rollouts: durable, adopted by the next attempt, and closed to the one before. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import { noteBytesMax, notesOfRolloutMax } from '../../core/limits.ts';
import { NotesLog } from '../../runs/rollouts/notes.ts';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { FileStore } from '../../store/file-store.ts';
import type { Store } from '../../store/index.ts';

const prefix = 'rollouts/step_1/groups_1-2/chunk_1_of_1/notes_';
const place = { group: 1, index: 0 };
const signal = new AbortController().signal;

describe('notes of a rollout', () => {
  test('are durable when put returns, and the first value of a key stands, in the next attempt too', async (t) => {
    const store = await newStore(t);
    const notes = (await open(store)).of(place);
    assert.equal(await notes.put('call', 'a', { answer: 1 }).then(() => 'put'), 'put');
    assert.deepEqual(await notes.put('call', 'a', { answer: 2 }), { answer: 1 });
    await notes.put('call', 'b', 'two');
    await notes.put('other', 'a', null);

    const next = (await open(store)).of(place);
    assert.deepEqual(await next.get('call', 'a'), { answer: 1 });
    assert.deepEqual(await next.put('call', 'a', { answer: 3 }), { answer: 1 });
    assert.deepEqual([...(await next.all('call'))], [['a', { answer: 1 }], ['b', 'two']]); // prettier-ignore
    assert.equal(await next.get('call', 'c'), undefined);
  });

  test('belong to one rollout of a group', async (t) => {
    const log = await open(await newStore(t));
    await log.of(place).put('call', 'a', 1);
    assert.equal(await log.of({ group: 1, index: 1 }).get('call', 'a'), undefined);
    assert.notEqual(await log.of(place).uniqueKey('a'), await log.of({ group: 1, index: 1 }).uniqueKey('a'));
  });

  test('that come together are one object', async (t) => {
    const store = await newStore(t);
    const log = await open(store);
    await Promise.all(Array.from({ length: 100 }, (_, index) => log.of({ group: 2, index }).put('call', 'a', index)));
    assert.ok((await store.list(prefix)).length <= 4);
  });

  test('cost a rollout without any nothing, not even a look', async (t) => {
    const store = await newStore(t);
    const log = await NotesLog.open(store, prefix, { signal, before: () => Promise.resolve(), keys: [] });
    assert.equal(log.of(place).mayHaveAny(), false);
    assert.deepEqual(await store.list(''), []);
  });

  test('have a unique key that is the same in each attempt, and another one in another folder', async (t) => {
    const [store, other] = [await newStore(t), await newStore(t)];
    const first = await (await open(store)).of(place).uniqueKey('pay');
    assert.equal(await (await open(store)).of(place).uniqueKey('pay'), first);
    assert.notEqual(await (await open(other)).of(place).uniqueKey('pay'), first);
    assert.match(first, /^[0-9a-f]{32}$/);
  });

  test('wait until what the caller has finished is durable', async (t) => {
    const order: string[] = [];
    const store = await newStore(t);
    const before = (): Promise<void> => Promise.resolve(void order.push('turns'));
    const log = await NotesLog.open(store, prefix, { signal, before });
    await log.of(place).put('call', 'a', 1);
    order.push('put');
    assert.deepEqual(order, ['turns', 'put']);
  });

  test('are refused where one is too large, or there are too many', async (t) => {
    const notes = (await open(await newStore(t))).of(place);
    await assert.rejects(notes.put('call', 'a', 'x'.repeat(noteBytesMax)), /has 1048578 bytes; a note has at most/);
    assert.equal(await notes.get('call', 'a'), undefined);
    await Promise.all(Array.from({ length: notesOfRolloutMax }, (_, i) => notes.put('call', `${i}`, i)));
    await assert.rejects(notes.put('call', 'more', 1), /has 20000 notes/);
  });
});

describe('an attempt whose rollouts another one has taken over', () => {
  test('can write nothing more down, whatever it knew before', async (t) => {
    const store = await newStore(t);
    const zombie = (await open(store)).of(place);
    await zombie.put('effect', 'a', 1);
    const next = (await open(store)).of(place);
    assert.equal(await next.get('effect', 'a'), 1);
    await assert.rejects(zombie.put('effect_settled', 'a', 1), isTakenOver);
    await assert.rejects(zombie.put('effect', 'b', 1), isTakenOver);
    assert.ok(zombie.takenOver());
    await next.put('effect', 'b', 2);
    assert.equal(await (await open(store)).of(place).get('effect', 'b'), 2);
  });

  test('loses what it writes at the same moment, or the next attempt knows it', async (t) => {
    for (let round = 0; round < 20; round++) {
      const store = await newStore(t);
      const zombie = (await open(store)).of(place);
      await zombie.put('effect', 'begun', 1);
      const writes = Promise.allSettled(Array.from({ length: 5 }, (_, i) => zombie.put('effect', `late ${i}`, i)));
      const next = (await open(store)).of(place);
      const known = await next.all('effect');
      for (const [i, { status }] of (await writes).entries()) {
        assert.equal(status === 'fulfilled', known.has(`late ${i}`), `note ${i} of round ${round}`);
      }
    }
  });

  test('that awakes when all of it is removed begins nothing, although no claim is left', async (t) => {
    const store = await newStore(t);
    const removedFirst = 'rollouts/step_1/groups_1-2/leases.json';
    await store.put(removedFirst, Buffer.from('{}'));
    const opened = (): Promise<NotesLog> =>
      NotesLog.open(store, prefix, { signal, before: () => Promise.resolve(), removedFirst });
    const [zombie, silent] = [(await opened()).of(place), (await opened()).of(place)];
    await zombie.put('effect', 'a', 1);
    await (await opened()).of(place).put('effect', 'b', 1);
    await store.removeAll(removedFirst);
    await store.removeAll(prefix.slice(0, -'notes_'.length));
    await assert.rejects(zombie.put('effect', 'b', 1), isTakenOver);
    await assert.rejects(silent.put('effect', 'b', 1), isTakenOver);
  });

  test('that was opened and wrote nothing learns of it with its first note', async (t) => {
    const store = await newStore(t);
    const early = await open(store);
    await (await open(store)).of(place).put('effect', 'a', 1);
    await assert.rejects(early.of(place).put('effect', 'a', 2), isTakenOver);
  });
});

test('a write whose answer was lost is not done twice, and what follows it is kept', async (t) => {
  const store = await newStore(t);
  let lost = 0;
  const unsure = new Proxy(store, {
    get(target, name) {
      const own: unknown = Reflect.get(target, name);
      if (name !== 'putIfAbsent') return typeof own === 'function' ? (own as () => unknown).bind(target) : own;
      return async (key: string, bytes: Uint8Array) => {
        const answer = await target.putIfAbsent(key, bytes);
        if ((lost += 1) % 2 === 0) throw new RatchetError('StoreUnavailable', 'the answer was lost');
        return answer;
      };
    },
  });
  const notes = (await open(unsure)).of(place);
  for (const key of ['a', 'b', 'c']) await notes.put('call', key, key);
  assert.deepEqual([...(await (await open(store)).of(place).all('call')).keys()], ['a', 'b', 'c']);
});

function open(store: Store): Promise<NotesLog> {
  return NotesLog.open(store, prefix, { signal, before: () => Promise.resolve() });
}

async function newStore(t: TestContext): Promise<Store> {
  return new FileStore(await temporaryFolder(t));
}

function isTakenOver(error: unknown): boolean {
  return error instanceof RatchetError && error.code === 'RolloutTakenOver';
}
