import { randomUUID } from 'node:crypto';
import type { JsonValue } from '../../../../core/json-value.ts';
import type { RolloutNotes } from '../../types.ts';

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
