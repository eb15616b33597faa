import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import { forkOriginIn, runRecordIn } from '../forms/record-shapes.ts';
import { layout } from '../layout.ts';
import { listRunNames } from '../list-runs.ts';
import { type RunPlace, storeOf } from '../run-access.ts';

/** When something was last written into a run's folder; null for an empty one. A run that is over writes no more. */
export async function lastWritten(run: RunPlace): Promise<{ readonly atMs: number; readonly bytes: number } | null> {
  let found: { atMs: number; bytes: number } | null = null;
  for await (const { bytes, putAtMs } of storeOf(run).sizes('')) {
    found ??= { atMs: 0, bytes: 0 };
    found = { atMs: Math.max(found.atMs, putAtMs), bytes: found.bytes + bytes };
  }
  return found;
}

/** That somebody wants a run to stay, whatever its retention says. */
export interface KeptRun {
  readonly why: string;
  readonly who: string;
  /** ISO time. */
  readonly since: string;
}

export async function keepRun(run: RunPlace, kept: KeptRun): Promise<void> {
  const key = layout.kept();
  await storeOf(run).put(key, encodeStored(key, kept));
}

export async function letRunGo(run: RunPlace): Promise<void> {
  await storeOf(run).removeAll(layout.kept());
}

/** null for a run that nobody wants to stay. */
export async function keptRun(run: RunPlace): Promise<KeptRun | null> {
  const key = layout.kept();
  const bytes = await storeOf(run).read(key);
  if (bytes === null) return null;
  const { why, who, since } = decodeStored<KeptRun>(bytes, storeOf(run).uri + key, (found) => ({
    'why, who and since as texts': [found['why'], found['who'], found['since']].every((one) => typeof one === 'string'),
  }));
  return { why, who, since };
}

/** Runs of the same store that were forked from this one, or whose settings name weights of it, sorted. */
export async function runsFrom(run: RunPlace): Promise<string[]> {
  const others = await listRunNames(run.store, (name) => name !== run.name);
  const isFrom = await Promise.all(
    others.map(async (name) => {
      const store = storeOf({ ...run, name });
      const bytes = await store.read(layout.run());
      if (bytes === null) return false;
      const isFork = forkOriginIn(bytes, store.uri + layout.run())?.from === run.name;
      return isFork || JSON.stringify(runRecordIn(bytes, store.uri + layout.run())).includes(`${run.name}/weights/`);
    }),
  );
  return others.filter((_, i) => isFrom[i]);
}

/**
 * Removes all that a run stored. What it is read by goes last: after a kill it is found again, and the rest goes then.
 */
export async function removeRun({ name, store: at }: RunPlace): Promise<void> {
  const store = storeOf({ name, store: at }); // what it is recognized by goes, too
  const last = [layout.kept(), layout.changes(), layout.allSpecs(), layout.run()];
  const keys = new Set<string>();
  for await (const { key } of store.sizes('')) keys.add(key);
  const isLast = (key: string): boolean =>
    last.some((one) => key === one || (one.endsWith('/') && key.startsWith(one)));
  for (const folder of topFolders([...keys].filter((key) => !isLast(key)))) await store.removeAll(folder);
  for (const one of last) await store.removeAll(one);
  await store.removeAll('');
}

/** The folders and files directly in the run's folder. */
function topFolders(keys: readonly string[]): ReadonlySet<string> {
  return new Set(keys.map((key) => (key.includes('/') ? key.slice(0, key.indexOf('/') + 1) : key)));
}
