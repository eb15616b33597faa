import { setTimeout as delay } from 'node:timers/promises';
import type { RunCost } from '../../core/rl/cost.ts';
import { RatchetError } from '../../core/errors.ts';
import { costOfRun } from '../../runs/metrics/cost.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { type RunStorage, storageOf } from '../../runs/storage.ts';

interface UsedByRun {
  readonly storage: RunStorage | null;
  readonly cost: RunCost | null;
}

const nothing: UsedByRun = { storage: null, cost: null };
/** Time to say what was counted, after the end; a store that does not answer says nothing. */
const graceMs = 500;
/** Runs whose files are counted at the same time. */
const runsAtOnce = 4;

/**
 * Storage and cost of runs, in the same order; nothing for one without a place, or whose place is not reached. After
 * `withinMs` it ends with what was counted; null = however long it takes.
 */
export async function usedByRuns(
  places: readonly (RunPlace | null)[],
  withinMs: number | null,
): Promise<readonly UsedByRun[]> {
  const signal = withinMs === null ? undefined : AbortSignal.timeout(withinMs);
  const ended = new AbortController();
  const isOver = withinMs === null ? null : delay(withinMs + graceMs, null, { signal: ended.signal }).catch(() => null);
  const soon = <T>(work: Promise<T>): Promise<T | null> =>
    Promise.race([work.catch(unlessNamed), ...(isOver === null ? [] : [isOver])]);
  const found = places.map(() => nothing);
  const waiting = [...places.entries()];
  const count = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const [i, place] = next;
      if (place === null || signal?.aborted === true) continue;
      const cost = await soon(costOfRun(place));
      const storage = await soon(storageOf(place, signal));
      found[i] = { cost, storage: storage === null || storage.objects === 0 ? null : storage };
    }
  };
  await Promise.all(Array.from({ length: runsAtOnce }, count));
  ended.abort();
  return found;
}

/** What is wrong with a run is said by its state in the same list, or by `ratchet status`. */
function unlessNamed(error: unknown): null {
  if (error instanceof RatchetError) return null;
  throw error;
}
