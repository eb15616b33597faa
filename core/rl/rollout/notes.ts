import type { JsonValue } from '../../json-value.ts';
import type { Rollout } from './rollout.ts';

/**
 * Notes of one rollout, which outlive the process: the next attempt at the same rollout has them, on another worker
 * too. An attempt that was followed by another one can write nothing more: its `put` rejects with `RolloutTakenOver`,
 * which is to be passed on.
 */
export interface RolloutNotes {
  /**
   * Writes a value down under a kind and a key, and resolves when it is durable; the turns that the rollout finished
   * before are durable then, too. The first value of a key stands, and is returned. Refused with a RangeError: values
   * above `noteBytesMax` as JSON, and more than a rollout may have (`notesOfRolloutMax`, `notesOfRolloutBytesMax`).
   */
  put(kind: string, key: string, value: JsonValue): Promise<JsonValue>;
  get(kind: string, key: string): Promise<JsonValue | undefined>;
  /** Values of a kind by key, in the order in which they were written. */
  all(kind: string): Promise<ReadonlyMap<string, JsonValue>>;
  /** A key that is unique among all rollouts, and the same in every attempt at this one. */
  uniqueKey(key: string): Promise<string>;
}

/** One note as it is stored. */
export interface StoredNote extends Pick<Rollout, 'group' | 'index'> {
  readonly kind: string;
  readonly key: string;
  readonly value: JsonValue;
  /** Number of the object with the rollout's notes before this one; in its first note of an object. */
  readonly before?: number;
}

/** What an attempt wrote down at once. The first part of an attempt claims the log for it, and has no notes. */
export interface NotesPart {
  /** Random: tells attempts apart, also those of one process. */
  readonly attempt: string;
  readonly notes: readonly StoredNote[];
}
