import { randomUUID } from 'node:crypto';
import type { JsonValue } from '../../../core/json-value.ts';
import { effectAnswerCharsMax } from '../../../core/limits.ts';
import { type BegunNote, effectKinds, effectNotes } from '../../../core/rl/rollout/effects.ts';
import type { RolloutNotes } from '../../../core/rl/rollout/notes.ts';
import { beginEffect, EffectKeyTaken, isEffectKind, settleEffect } from '../effects.ts';

const keyCharsMax = 200;

/** The request of a program: one key, to begin or to settle. */
interface AskedEffect {
  readonly key: string;
  readonly isSettle: boolean;
}

interface RouteAnswer {
  readonly status: number;
  readonly body: { [name: string]: JsonValue };
  /** Key of the effect that the program makes from now on, or that has an answer now. */
  readonly making?: string;
  readonly settled?: string;
}

/**
 * Effects of a program that owns its loop: `POST /effects/KEY` writes a call down and says whether the program is to
 * make it, `POST /effects/KEY/settle` writes its answer down. `key` is decoded and has no secret; `body` is the parsed
 * JSON; `making` has the keys that this life of the program was told to make and has not settled. Rejects only where the
 * store or the rollout's attempt is at fault (`RolloutTakenOver`), which ends the rollout.
 *
 *     POST /effects/KEY          {"kind": "once", "arguments": {…}, "name": "send"}
 *       200 {"state": "make", "idempotency_key": "…", "again": false}
 *       200 {"state": "settled", "answer": …}       it was made before: this is its answer
 *       409 {"state": "making", "error": "…"}       it is made once, and this life of the program makes it already
 *       409 {"state": "in_doubt", "error": "…"}     it is made once, and may have been: the rollout ends without a reward
 *     POST /effects/KEY/settle   {"answer": …}
 *       200 {"state": "settled", "answer": …}       the answer that stands
 *       409 {"state": "in_doubt", "error": "…"}     it is made once, and another life of the program began it
 */
export async function handleEffect(
  notes: RolloutNotes,
  { key, isSettle }: AskedEffect,
  body: JsonValue,
  making: ReadonlySet<string>,
): Promise<RouteAnswer> {
  if (key.length === 0 || key.length > keyCharsMax)
    return refused(400, `a key has 1 to ${keyCharsMax} characters`, key.slice(0, keyCharsMax));
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    return refused(400, 'the body must be a JSON object', JSON.stringify(body).slice(0, keyCharsMax));
  }
  return isSettle ? settle(notes, key, body, making.has(key)) : begin(notes, key, body, making.has(key));
}

async function begin(
  notes: RolloutNotes,
  key: string,
  body: { [name: string]: JsonValue },
  isMaking: boolean,
): Promise<RouteAnswer> {
  const { kind, name = key, arguments: given = null } = body;
  if (!isEffectKind(kind)) return refused(400, `kind must be one of ${effectKinds.join(', ')}`, JSON.stringify(kind));
  if (typeof name !== 'string') return refused(400, 'name must be a text', JSON.stringify(name));
  try {
    const begun = await beginEffect(notes, { kind, key, name: name.slice(0, keyCharsMax), arguments: given });
    if (begun.state === 'settled') return { status: 200, body: { state: 'settled', answer: begun.answer } };
    if (begun.state === 'in_doubt' && isMaking) {
      const error = `${name} is made only once, and this program is making it: its answer comes with ${settleOf(key)}.`;
      return { status: 409, body: { state: 'making', error } };
    }
    if (begun.state === 'in_doubt') return inDoubt(name);
    const { idempotencyKey, isAgain } = begun;
    return { status: 200, body: { state: 'make', idempotency_key: idempotencyKey, again: isAgain }, making: key };
  } catch (error) {
    return refusalOf(error);
  }
}

function inDoubt(name: string): RouteAnswer {
  const error = `${name} is made only once. It was begun before, and nobody knows whether it happened: the rollout ends without a reward.`;
  return { status: 409, body: { state: 'in_doubt', error } };
}

function settleOf(key: string): string {
  return `POST /effects/${encodeURIComponent(key)}/settle`;
}

async function settle(
  notes: RolloutNotes,
  key: string,
  body: { [name: string]: JsonValue },
  isMaking: boolean,
): Promise<RouteAnswer> {
  const { answer = null } = body;
  const { length } = JSON.stringify(answer);
  if (length > effectAnswerCharsMax) {
    return refused(413, `an answer has at most ${effectAnswerCharsMax} characters as JSON`, `${length}`);
  }
  const begun = (await notes.get(effectNotes.begun, key)) as unknown as BegunNote | undefined;
  // Only the process of the program that made an effect knows its answer: a later process may not settle it.
  const isOfAnother = begun?.kind === 'once' && !isMaking && (await notes.get(effectNotes.settled, key)) === undefined;
  if (isOfAnother) return inDoubt(begun.name);
  try {
    return { status: 200, body: { state: 'settled', answer: await settleEffect(notes, key, answer) }, settled: key };
  } catch (error) {
    return refusalOf(error);
  }
}

/** What is the program's mistake; anything else is thrown on. */
function refusalOf(error: unknown): RouteAnswer {
  if (error instanceof EffectKeyTaken) return { status: 409, body: { error: error.message } };
  if (error instanceof RangeError) return { status: 413, body: { error: error.message } };
  throw error;
}

function refused(status: number, expected: string, received: string): RouteAnswer {
  return { status, body: { error: `${expected}, but this came: ${received}` } };
}

/** Notes of a rollout that no other attempt goes on with (`env check`): its calls with an effect are made, and known until it ends. */
export function notesHere(): RolloutNotes {
  const kinds = new Map<string, Map<string, JsonValue>>();
  const unique = randomUUID();
  const of = (kind: string): ReadonlyMap<string, JsonValue> => kinds.get(kind) ?? new Map<string, JsonValue>();
  return {
    put(kind, key, value) {
      const stands = of(kind).get(key) ?? value;
      kinds.set(kind, new Map([...of(kind), [key, stands]]));
      return Promise.resolve(stands);
    },
    get: (kind, key) => Promise.resolve(of(kind).get(key)),
    all: (kind) => Promise.resolve(of(kind)),
    uniqueKey: (key) => Promise.resolve(`${unique} ${key}`),
  };
}
