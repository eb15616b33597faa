import type { UnfinishedRollout } from '../core/rl/rollout/rollout.ts';
import type { ObjectRef } from '../core/rl/run-state.ts';
import type { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import { decodeStored, encodeStored, encodeStoredRows } from '../runs/forms/stored-forms.ts';
import { sha256 } from '../store/file-store.ts';
import { encodeRows } from '../store/objects.ts';
import type { AttemptEnd, ChunkAttempt, chunkPlace, GeneratedChunk, StoredWork } from './chunk-play.ts';
import type { Place } from './training-players.ts';

/** Results of an attempt at a chunk that stopped before the chunk was complete. */

/** Stores which rollouts finished and which did not. Idempotent: a retry of this attempt returns the same. */
export async function leaveUnfinished(
  { store, ended: prefix }: Pick<ReturnType<typeof chunkPlace>, 'store' | 'ended'>,
  left: {
    readonly journal: RolloutJournal;
    readonly unfinished: readonly Place[];
    readonly endedBy: AttemptEnd;
    readonly adopted: number;
    readonly attempt: ChunkAttempt;
    /** Work that is already in the store. */
    readonly stored: StoredWork;
    readonly overBudget: string | undefined;
  },
): Promise<GeneratedChunk> {
  const { journal, attempt, stored } = left;
  const finished = journal.inOrder();
  const unfinished = left.unfinished.map(({ group, index }): UnfinishedRollout => {
    return { group, index, turns: journal.turnsOf({ group, index }).length };
  });
  // Keys contain a content hash, because two overlapping attempts may have finished different rollouts.
  const putRows = async (kind: string, rows: readonly object[]): Promise<ObjectRef> => {
    const key = `${prefix}.${kind}.${sha256(encodeRows(rows)).slice(0, 8)}.jsonl`;
    return { ...(await store.put(key, encodeStoredRows(key, rows))), count: rows.length };
  };
  const result: GeneratedChunk = {
    finished: await putRows('finished', finished),
    unfinished: await putRows('unfinished', unfinished),
    endedBy: left.endedBy,
    ...(attempt.notReady === null ? {} : { notReady: attempt.notReady }),
    ...(left.endedBy === 'budget' && left.overBudget !== undefined ? { overBudget: left.overBudget } : {}),
    rollouts: stored.rollouts,
    adopted: left.adopted,
    seconds: attempt.seconds(),
    ...(left.endedBy === 'shutdown' ? attempt.lostIfItStopsHere(stored) : attempt.lost()),
  };
  const { bytes } = await store.putIfAbsent(`${prefix}.json`, encodeStored(`${prefix}.json`, result));
  return readLeft(bytes, `${prefix}.json`);
}

/** Results that the previous attempt stored but could not report. Its losses include those of the time since. */
export function leftBefore(bytes: Uint8Array, key: string, attempt: ChunkAttempt): GeneratedChunk {
  attempt.goOnFrom(null);
  return { ...readLeft(bytes, key), ...attempt.lost() };
}

/** When a whole machine stops, its policy server may stop before the worker. The server is then no reason for the run to wait. */
function readLeft(bytes: Uint8Array, key: string): GeneratedChunk {
  const { notReady, ...left } = decodeStored<GeneratedChunk>(bytes, key);
  const isEndedFromOutside = left.endedBy === 'shutdown' || left.endedBy === 'cancelled';
  return { ...left, ...(notReady && !isEndedFromOutside ? { notReady } : {}) };
}
