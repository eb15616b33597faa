/** `POST /effects/KEY`: what a program that owns its loop is told about its calls. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { JsonValue } from '../../core/json-value.ts';
import { effectAnswerCharsMax } from '../../core/limits.ts';
import { handleEffect } from '../../backends/environments/agent/effect-route.ts';
import { NotesLog } from '../../runs/rollouts/notes.ts';
import type { NotesView } from '../../runs/rollouts/notes.ts';
import { memoryStore } from '../stand-ins/memory-store.ts';

const send = { kind: 'once', name: 'send', arguments: { to: 'ada' } };

describe('POST /effects/KEY', () => {
  test('says that a new call is to be made, and answers with what was settled, to a later attempt too', async () => {
    const attempts = world();
    const first = await attempts();
    const made = await post(first, 'mail-1', send);
    assert.deepEqual([made.status, made.body['state'], made.body['again']], [200, 'make', false]);
    assert.match(made.body['idempotency_key'] as string, /^[0-9a-f]{32}$/);
    const settled = { status: 200, body: { state: 'settled', answer: { id: 7 } } };
    const known = { ...settled, settled: 'mail-1' };
    assert.deepEqual(await post(first, 'mail-1/settle', { answer: { id: 7 } }), known);
    assert.deepEqual(await post(first, 'mail-1/settle', { answer: 'another' }), known);
    assert.deepEqual(await post(await attempts(), 'mail-1', send), settled);
  });

  test('says after a death that a once-only call is in doubt, and gives a keyed one its key again', async () => {
    const attempts = world();
    const first = await attempts();
    await post(first, 'mail-1', send);
    const keyed = await post(first, 'pay', { kind: 'keyed', arguments: 5 });
    await post(first, 'set', { kind: 'idempotent', arguments: 5 });

    const next = await attempts();
    const { status, body } = await post(next, 'mail-1', send);
    assert.deepEqual([status, body['state']], [409, 'in_doubt']);
    const again = await post(next, 'pay', { kind: 'keyed', arguments: 5 });
    assert.deepEqual(again, { ...keyed, body: { ...keyed.body, again: true } });
    const set = await post(next, 'set', { kind: 'idempotent', arguments: 5 });
    assert.deepEqual([set.body['state'], set.body['again']], ['make', true]);
  });

  test('a once-only call that is asked for twice in one life is being made, and settled by that life alone', async () => {
    const attempts = world();
    const first = await attempts();
    await post(first, 'mail-1', send);
    const twice = await post(first, 'mail-1', send);
    assert.deepEqual([twice.status, twice.body['state']], [409, 'making']);
    assert.match(twice.body['error'] as string, /its answer comes with POST \/effects\/mail-1\/settle/);
    assert.equal((await post(first, 'mail-1/settle', { answer: 1 })).status, 200);
    assert.deepEqual((await post(first, 'mail-1', send)).body, { state: 'settled', answer: 1 });

    await post(first, 'mail-2', send);
    const next = await attempts();
    for (const path of ['mail-2', 'mail-2/settle']) {
      const { status, body } = await post(next, path, path.endsWith('settle') ? { answer: 1 } : send);
      assert.deepEqual([path, status, body['state']], [path, 409, 'in_doubt']);
    }
    assert.equal(await next.get('effect_settled', 'mail-2'), undefined);
  });

  test('refuses what it cannot read, and says what was expected', async () => {
    const notes = await world()();
    await post(notes, 'taken', send);
    const refusals: [string, unknown, number, RegExp][] = [
      ['', send, 400, /a key has 1 to 200 characters/],
      ['x'.repeat(201), send, 400, /a key has 1 to 200 characters/],
      ['k', [1], 400, /the body must be a JSON object, but this came: \[1\]/],
      ['k', {}, 400, /kind must be one of idempotent, once, keyed/],
      ['k', { kind: 'twice' }, 400, /but this came: "twice"/],
      ['k', { kind: 'once', name: 1 }, 400, /name must be a text/],
      ['taken', { ...send, arguments: 'others' }, 409, /The key taken is that of another call.*: once send/],
      ['never/settle', { answer: 1 }, 409, /No call with the key never was begun/],
      ['taken/settle', { answer: 'x'.repeat(effectAnswerCharsMax) }, 413, /an answer has at most 262144 characters/],
    ];
    for (const [path, body, status, says] of refusals) {
      const answer = await post(notes, path, body as never);
      assert.equal(answer.status, status, path.slice(0, 20));
      assert.match(answer.body['error'] as string, says);
    }
  });

  test('rejects once another attempt has taken the rollout over', async () => {
    const attempts = world();
    const zombie = await attempts();
    await post(zombie, 'a', send);
    await attempts();
    await assert.rejects(post(zombie, 'a/settle', { answer: 1 }), { code: 'RolloutTakenOver' });
    await assert.rejects(post(zombie, 'b', send), { code: 'RolloutTakenOver' });
  });
});

/** As the address of a rollout asks: `KEY`, or `KEY/settle`. */
async function post(notes: NotesView, path: string, body: JsonValue): ReturnType<typeof handleEffect> {
  const [key = '', end] = path.split('/');
  const making = makings.get(notes) ?? new Set();
  makings.set(notes, making);
  const answer = await handleEffect(notes, { key, isSettle: end === 'settle' }, body, making);
  if (answer.making !== undefined) making.add(answer.making);
  if (answer.settled !== undefined) making.delete(answer.settled);
  return answer;
}
/** What each life of the program makes, as its address remembers it. */
const makings = new WeakMap<NotesView, Set<string>>();

/** Opens one attempt after the other at one rollout. */
function world(): () => Promise<NotesView> {
  const store = memoryStore(new Map());
  const options = { signal: new AbortController().signal, before: () => Promise.resolve() };
  return async () => (await NotesLog.open(store, 'rollouts/chunk_0/notes_', options)).of({ group: 0, index: 0 });
}
