import { present } from '../../core/present.ts';
import { RolloutJournal } from '../../runs/rollout-journal.ts';
import { sha256 } from '../store/file-store.ts';
import { countRows } from '../store/objects.ts';
import { encodeStoredRows } from '../../runs/stored-forms.ts';
import type { GenerateDependencies } from './asked-model.ts';
import {
  type ChunkAttempt,
  type ChunkInput,
  chunkPlace,
  endOf,
  type GeneratedChunk,
  openChunk,
  playMissing,
  timedOut,
} from './chunk-play.ts';
import { leaveUnfinished, leftBefore } from './left-chunk.ts';

/**
 * Plays a chunk of the round's groups, until all are done, the deadline is reached, or it is told to stop; then it names
 * what is finished and what is not. A retry, like the next attempt, finds finished rollouts and turns in the store and
 * plays only what is missing, with the same random numbers.
 */
export async function generateChunk(
  dependencies: GenerateDependencies,
  input: ChunkInput,
  attempt: ChunkAttempt,
  { cancelled, say }: { readonly cancelled: AbortSignal; readonly say: () => void },
): Promise<GeneratedChunk> {
  const place = chunkPlace(input);
  const { store, prefix, ended } = place;
  const whole = await store.read(`${prefix}.jsonl`);
  if (whole) {
    attempt.goOnFrom(null);
    return generated(`${prefix}.jsonl`, whole, null, attempt);
  }
  const left = await store.read(`${ended}.json`);
  if (left) return leftBefore(left, `${ended}.json`, attempt);

  const journal = await RolloutJournal.open(store, `${prefix}/`, input.round.leases.sha256);
  journal.keep();
  attempt.goOnFrom(journal.size());
  const opened = await openChunk(dependencies, input, attempt, { journal, cancelled });
  const { wanted, signal, deadline, spec } = opened;
  const missing = wanted.filter(({ place }) => !journal.has(place));
  const adopted = wanted.length - missing.length;
  const playedS: number[] = [];
  const failed = await playMissing(opened, missing, { say, onFinished: (_, seconds) => playedS.push(seconds) });
  const unfinished = wanted.filter(({ place }) => !journal.has(place));
  if (unfinished.length > 0) {
    const endedBy = failed.length > 0 && !signal.aborted ? 'failures' : endOf(attempt, cancelled, deadline);
    const isGivenUp = endedBy === 'deadline' && input.isLast === true && attempt.notReady === null;
    if (!isGivenUp) {
      const stored = journal.size();
      const places = unfinished.map((one) => one.place);
      const left = await leaveUnfinished(place, { journal, unfinished: places, endedBy, adopted, attempt, stored });
      journal.forget();
      return left;
    }
    for (const one of unfinished) journal.add(timedOut(one, journal, spec));
  }
  // An attempt that was given up may still be at work: whoever is first decides, and both return the same.
  const { stored, bytes } = await store.putIfAbsent(
    `${prefix}.jsonl`,
    encodeStoredRows(`${prefix}.jsonl`, journal.inOrder()),
  );
  journal.forget();
  const rolloutS = playedS.length === 0 ? undefined : playedS.reduce((sum, one) => sum + one, 0) / playedS.length;
  return { ...generated(`${prefix}.jsonl`, bytes, stored ? adopted : null, attempt), ...present({ rolloutS }) };
}

/** What lies in the store of a chunk; `adopted` null = all of it was there. */
function generated(key: string, bytes: Uint8Array, adopted: number | null, attempt: ChunkAttempt): GeneratedChunk {
  const rollouts = countRows(bytes);
  return {
    finished: { key, sha256: sha256(bytes), bytes: bytes.byteLength, count: rollouts },
    rollouts,
    adopted: adopted ?? rollouts,
    seconds: attempt.seconds(),
    ...attempt.lost(),
  };
}
