import type { JsonValue } from '../../../core/json-value.ts';
import { effectAnswerCharsMax } from '../../../core/limits.ts';
import type { RolloutNotes } from '../../../core/rl/rollout/notes.ts';
import { beginEffect, cut, effectKey, settleEffect } from '../effects.ts';
import type { WireNote, WireNoted } from './protocol.ts';

const stateKind = 'state';

/** States that earlier attempts at a rollout wrote down, by key. */
export async function notedStates(notes: RolloutNotes | undefined): Promise<Record<string, JsonValue> | undefined> {
  return notes && Object.fromEntries(await notes.all(stateKind));
}

/** Writes down what one rollout in Python says: the calls with an effect that its tools make, and its states. */
export function rolloutNotes(notes: RolloutNotes): (told: WireNote) => Promise<WireNoted> {
  /** Equal calls so far, by name and arguments. */
  const equal = new Map<string, number>();
  return async ({ begin, settle, state }) => {
    if (state !== undefined) return noteState(notes, state);
    if (settle !== undefined) {
      const { key, answer } = settle;
      return { state: 'settled', answer: await settleEffect(notes, key, bounded(answer)) };
    }
    const { kind, name, arguments: given } = begin!;
    const first = effectKey(name, given, 0);
    const before = equal.get(first) ?? 0;
    equal.set(first, before + 1);
    const key = effectKey(name, given, before);
    const begun = await beginEffect(notes, { kind, key, name, arguments: given });
    if (begun.state === 'settled') return begun;
    if (begun.state === 'make') return { state: 'make', key, idempotency_key: begun.idempotencyKey };
    return {
      state: 'in_doubt',
      message: `${name} is made only once, was begun before, and nobody knows whether it happened`,
    };
  };
}

async function noteState(notes: RolloutNotes, { key, note }: NonNullable<WireNote['state']>): Promise<WireNoted> {
  try {
    await notes.put(stateKind, key, note);
    return { state: 'noted' };
  } catch (error) {
    if (error instanceof RangeError) return { state: 'refused' };
    throw error;
  }
}

/** A text is cut where it is too long, also for the model; other values are refused. */
function bounded(answer: JsonValue): JsonValue {
  if (typeof answer === 'string') return cut(answer);
  const { length } = JSON.stringify(answer);
  if (length <= effectAnswerCharsMax) return answer;
  throw new RangeError(
    `The answer of a tool with an effect has ${length} characters as JSON; it may have ${effectAnswerCharsMax}.`,
  );
}
