import { type RunPlace, storeOf } from './run-access.ts';

/** What a run takes in its store. */
export interface RunStorage {
  readonly bytes: number;
  readonly objects: number;
  /** Bytes by what they are: the folder that holds them, the same for all lineages; `records` = files of no folder. */
  readonly byKind: Readonly<Record<string, number>>;
  /** False: counting was ended before everything was found. */
  readonly isWhole: boolean;
}

/** Adds up the sizes of a run's objects, of which none is read. `signal` ends it early. */
export async function storageOf(place: RunPlace, signal?: AbortSignal): Promise<RunStorage> {
  const byKind: Record<string, number> = {};
  let [bytes, objects] = [0, 0];
  for await (const found of storeOf(place).sizes('')) {
    if (signal?.aborted === true) return { bytes, objects, byKind, isWhole: false };
    const kind = kindOf(found.key);
    byKind[kind] = (byKind[kind] ?? 0) + found.bytes;
    bytes += found.bytes;
    objects += 1;
  }
  return { bytes, objects, byKind, isWhole: true };
}

/** `weights` for `weights/…` and for `lineages/l2/weights/…`; `commits` for `lineages/L/steps/…`. */
function kindOf(key: string): string {
  const [, inLineage = key] = /^lineages\/[^/]+\/(.*)$/.exec(key) ?? [];
  const slash = inLineage.indexOf('/');
  if (slash < 0) return 'records';
  const folder = inLineage.slice(0, slash);
  return folder === 'steps' ? 'commits' : folder;
}
