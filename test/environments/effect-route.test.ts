/** `POST /effects/KEY`: what a program that owns its loop is told about its calls. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
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
    const made = await handleEffect(first, 'mail-1', send);
    assert.deepEqual([made.status, made.body['state'], made.body['again']], [200, 'make', false]);
    assert.match(made.body['idempotency_key'] as string, /^[0-9a-f]{32}$/);
    const settled = { status: 200, body: { state: 'settled', answer: { id: 7 } } };
    assert.deepEqual(await handleEffect(first, 'mail-1/settle', { answer: { id: 7 } }), settled);
    assert.deepEqual(await handleEffect(first, 'mail-1/settle', { answer: 'another' }), settled);
    assert.deepEqual(await handleEffect(await attempts(), 'mail-1', send), settled);
  });

  test('says after a death that a once-only call is in doubt, and gives a keyed one its key again', async () => {
    const attempts = world();
    const first = await attempts();
    await handleEffect(first, 'mail-1', send);
    const keyed = await handleEffect(first, 'pay', { kind: 'keyed', arguments: 5 });
    await handleEffect(first, 'set', { kind: 'idempotent', arguments: 5 });

    const next = await attempts();
    const { status, body } = await handleEffect(next, 'mail-1', send);
    assert.deepEqual([status, body['state']], [409, 'in_doubt']);
    const again = await handleEffect(next, 'pay', { kind: 'keyed', arguments: 5 });
    assert.deepEqual(again, { ...keyed, body: { ...keyed.body, again: true } });
    const set = await handleEffect(next, 'set', { kind: 'idempotent', arguments: 5 });
    assert.deepEqual([set.body['state'], set.body['again']], ['make', true]);
  });

  test('refuses what it cannot read, and says what was expected', async () => {
    const notes = await world()();
    await handleEffect(notes, 'taken', send);
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
      const answer = await handleEffect(notes, path, body as never);
      assert.equal(answer.status, status, path.slice(0, 20));
      assert.match(answer.body['error'] as string, says);
    }
  });

  test('rejects once another attempt has taken the rollout over', async () => {
    const attempts = world();
    const zombie = await attempts();
    await handleEffect(zombie, 'a', send);
    await attempts();
    await assert.rejects(handleEffect(zombie, 'a/settle', { answer: 1 }), { code: 'RolloutTakenOver' });
    await assert.rejects(handleEffect(zombie, 'b', send), { code: 'RolloutTakenOver' });
  });
});

/** Opens one attempt after the other at one rollout. */
function world(): () => Promise<NotesView> {
  const store = memoryStore(new Map());
  const options = { signal: new AbortController().signal, before: () => Promise.resolve() };
  return async () => (await NotesLog.open(store, 'rollouts/chunk_0/notes_', options)).of({ group: 0, index: 0 });
}
