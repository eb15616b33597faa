import { chunkInPlayOf, layout, roundOf, stepOf } from '../layout.ts';
import type { OpenRound, StepCommit } from '../../core/rl/run-state.ts';
import type { Store } from '../../store/index.ts';
import { sealedSteps } from '../versions/checkpoints.ts';
import {
  begunLineages,
  committedSteps,
  type LineagePlace,
  lineagesOf,
  readCommit,
  requireCommit,
  type RunPlace,
  specOf,
  storeOf,
} from '../run-access.ts';

/** Objects that nothing needs any more: no resume, rewind to a kept checkpoint, audit or evaluation. */
export interface Unneeded {
  readonly key: string;
  readonly why: string;
  readonly bytes: number;
  /** Of an upload in parts that was cut off: `key` is where its object would be. */
  readonly upload?: string;
}

const dayMs = 24 * 3_600_000;

/** Age below which a file may still be being written, and is kept. */
const leftoverMs = 3_600_000;

/**
 * Looks at all lineages of a run, which may be open; removes nothing. Rollouts of steps that were made less than
 * `rolloutsDays` ago stay. Claims stay, however old: they stop a process that wakes up late.
 */
export async function findUnneeded(
  run: RunPlace,
  { rolloutsDays = null }: { readonly rolloutsDays?: number | null } = {},
): Promise<Unneeded[]> {
  const store = storeOf(run);
  const lineages = await lineagesOf(run);
  const found: Omit<Unneeded, 'bytes'>[] = [];
  const needed = new Set<string>();
  /** When the oldest commit to continue from was made; nothing is that old before the first. */
  let oldestMs = Date.now();
  /** Folders of rounds that were still being generated at a commit. */
  const inPlay: string[] = [];
  const isInPlay = (key: string): boolean => {
    const chunk = chunkInPlayOf(key);
    return chunk !== null && inPlay.includes(layout.round(chunk.lineage, chunk.step, chunk.first, chunk.last));
  };
  for (const lineage of lineages) {
    const here = { ...run, lineage };
    const { upTo, head } = await oldestKept(here);
    if (head === null) continue;
    const readUpTo = rolloutsDays === null ? upTo : await olderThan(here, { upTo, days: rolloutsDays });
    for (const { state, committedAt } of await commitsToGoOnFrom(here, upTo)) {
      oldestMs = Math.min(oldestMs, Date.parse(committedAt));
      for (const { scored } of state.surplus) needed.add(scored.key);
      for (const { step, first, last } of state.open ?? []) inPlay.push(layout.round(lineage, step, first, last));
      if (state.curriculum.pools) needed.add(state.curriculum.pools.key);
    }
    for (const key of await store.list(layout.allRounds(lineage))) {
      const step = stepOf(key) ?? Infinity;
      const isPlayed = step < head && !layout.isScored(key);
      if (isPlayed)
        found.push({
          key,
          why: 'the scored round beside it holds these rollouts, or their step was made without them',
        });
      else if (step <= readUpTo)
        found.push({
          key,
          why: `rollouts of steps before the oldest checkpoint that a run can continue from (${upTo})`,
        });
    }
    for (const key of await store.list(layout.allInPlay(lineage))) {
      if (isInPlay(key)) continue;
      if ((stepOf(key) ?? Infinity) < head) found.push({ key, why: 'a worker that ended left it; its step is made' });
    }
    for (const key of await store.list(layout.allResults(lineage))) {
      if ((stepOf(key) ?? Infinity) <= readUpTo) found.push({ key, why: `results of steps before checkpoint ${upTo}` });
    }
    for (const key of await store.list(layout.allBatches(lineage))) {
      if ((stepOf(key) ?? Infinity) <= upTo)
        found.push({ key, why: `batches that lead up to checkpoint ${upTo} only` });
    }
    for (const key of await store.list(layout.allTokenScores(lineage))) {
      if ((stepOf(key) ?? Infinity) <= readUpTo)
        found.push({ key, why: `log probabilities of tokens of steps before checkpoint ${upTo}` });
    }
    for (const prefix of [layout.allPending(lineage), layout.olderPending(lineage)]) {
      for (const key of await store.list(prefix))
        if ((stepOf(key) ?? Infinity) <= upTo)
          found.push({ key, why: 'left by a training attempt whose result was not used' });
    }
  }
  // Those of a step under way are there before the commit, or the lease, that names them.
  for await (const { key, putAtMs } of store.sizes(layout.allPools()))
    if (putAtMs < oldestMs - leftoverMs) found.push({ key, why: 'pools that no step to continue from has' });
  for (const key of (await store.leftovers?.(leftoverMs)) ?? [])
    found.push({ key, why: 'a write that was cut off left it' });
  const sizes = new Map<string, number>();
  if (found.length > 0) for await (const { key, bytes } of store.sizes('')) sizes.set(key, bytes);
  return found
    .filter(({ key }) => !needed.has(key) && !inPlay.some((folder) => key.startsWith(folder)))
    .map((each) => ({ ...each, bytes: sizes.get(each.key) ?? 0 }));
}

/** Time without a new part after which an upload's writer is gone: it sends one every few seconds, and waits minutes at most. */
const silentUploadMs = 24 * 3_600_000;

/** Uploads in parts that were cut off; a text: why the store does not list them. */
export async function findCutOffUploads(run: RunPlace, silentMs = silentUploadMs): Promise<Unneeded[] | string> {
  const found = (await storeOf(run).uploads?.cutOff(silentMs)) ?? [];
  if (typeof found === 'string') return found;
  const why = `parts of uploads that were cut off, and got nothing for ${silentMs / 3_600_000} h`;
  return found.map(({ key, id, bytes }) => ({ key, why, bytes, upload: id }));
}

export async function removeUnneeded(run: RunPlace, unneeded: readonly Unneeded[]): Promise<void> {
  const store = storeOf(run);
  const objects = unneeded.filter(({ upload }) => upload === undefined);
  for (const key of leasesFirst(objects.map(({ key }) => key))) await store.removeAll(key);
  for (const { key, upload } of unneeded) if (upload !== undefined) await store.uploads?.abort({ key, id: upload });
}

/** The notes of a round's rollouts go after its leases: an attempt that wakes up late looks for these (`NotesLog`). */
function leasesFirst(keys: readonly string[]): string[] {
  return keys.toSorted((a, b) => Number(layout.isLeases(b)) - Number(layout.isLeases(a)));
}

/**
 * Automatic retention: in committed rounds that are no longer generated, removes everything except the scored rollouts,
 * which hold all that is kept. Lists once.
 */
export async function removePlayed(
  store: Store,
  lineage: string,
  { before, inPlay }: { readonly before: number; readonly inPlay: readonly OpenRound[] },
): Promise<void> {
  const over = new Set<string>();
  const playing = new Set(inPlay.map(({ first }) => first));
  for (const key of await store.list(layout.allRounds(lineage))) {
    const round = roundOf(key);
    if (round === null || round.step >= before || playing.has(round.first) || layout.isScored(key)) continue;
    const folder = layout.round(lineage, round.step, round.first, round.last);
    const rest = key.slice(folder.length);
    over.add(rest.includes('/') ? folder + rest.slice(0, rest.indexOf('/') + 1) : key);
  }
  for (const key of await store.list(layout.allInPlay(lineage))) {
    const chunk = chunkInPlayOf(key);
    if (chunk !== null && chunk.step < before && !playing.has(chunk.first)) over.add(key);
  }
  for (const key of leasesFirst([...over])) await store.removeAll(key);
}

/** Step of the oldest checkpoint among the newest `keep_last`: no resume or rewind can use anything before it. */
async function oldestKept(run: LineagePlace): Promise<{ upTo: number; head: number | null }> {
  const head = (await committedSteps(run)).at(-1) ?? null;
  const sealed = await sealedSteps(storeOf(run), run.lineage);
  if (head === null) return { upTo: 0, head };
  const { spec } = (await requireCommit(run, head)).commit;
  const keepLast = spec ? (await specOf({ ...run, spec, attempt: 1 })).checkpoints.keepLast : 1;
  const begun = await begunLineages(run);
  const takenOver = begun.flatMap(({ origin }) => (origin.lineage === run.lineage ? [origin.step] : []));
  const needed = takenOver.flatMap((at) => sealed.findLast((step) => step <= at) ?? []);
  return { upTo: Math.min(sealed.slice(-keepLast)[0] ?? 0, ...needed), head };
}

/** The newest step up to `upTo` that was committed so many days ago; −1 without any. */
async function olderThan(
  run: LineagePlace,
  { upTo, days }: { readonly upTo: number; readonly days: number },
): Promise<number> {
  const beforeMs = Date.now() - days * dayMs;
  for (const step of (await committedSteps(run)).filter((one) => one <= upTo).toReversed()) {
    const found = await readCommit(run, step);
    if (found !== null && Date.parse(found.commit.committedAt) < beforeMs) return step;
  }
  return -1;
}

/** Commits that a resume or a rewind may continue from. */
async function commitsToGoOnFrom(run: LineagePlace, upTo: number): Promise<StepCommit[]> {
  const sealed = await sealedSteps(storeOf(run), run.lineage);
  const steps = (await committedSteps(run)).filter((step) => step >= upTo || sealed.includes(step));
  const found = await Promise.all(steps.map((step) => readCommit(run, step)));
  return found.flatMap((each) => (each ? [each.commit] : []));
}
