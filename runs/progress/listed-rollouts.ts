import { decodeRanges } from '../../core/rl/ledger.ts';
import type { ChunkInPlay, RolloutInPlay } from '../../core/rl/rollout/in-play.ts';
import type { ListedRollout, ListedRollouts, PlayedBy, Standing } from '../../core/rl/rollout/progress.ts';
import { isGone } from '../../host/worker-process.ts';
import { isRecord, type Shape } from '../../store/objects.ts';
import { decodeStored } from '../forms/stored-forms.ts';
import { chunkInPlayOf, layout } from '../layout.ts';
import { currentLineage, type RunPlace, storeOf } from '../run-access.ts';

/** Clocks of hosts may differ. */
const clocksMs = 30_000;

/** A chunk that is played, as the worker of its newest attempt last said. */
export interface FollowedChunk extends ChunkInPlay {
  readonly standing: Standing;
  readonly lineage: string;
  readonly step: number;
  /** Prefix of the turns and notes of its rollouts. */
  readonly prefix: string;
}

interface Looked {
  readonly environment?: string | undefined;
  readonly limit: number;
}

const shape: Shape = ({ worker, writtenAtMs, rollouts }) => ({
  'its worker, and when it was written': typeof worker === 'string' && Number.isFinite(writtenAtMs),
  'rollouts with their places':
    Array.isArray(rollouts) && rollouts.every((one) => isRecord(one) && Number.isSafeInteger(one['group'])),
});

/** Reads an object for each chunk in play, however many turns its rollouts have. */
export async function chunksInPlay(place: RunPlace): Promise<FollowedChunk[]> {
  const store = storeOf(place);
  const keys = newestAttempts(await store.list(layout.allInPlay(await currentLineage(place))));
  const chunks = await Promise.all(
    [...keys].map(async ([key, { lineage, step, first, last, chunk }]) => {
      const bytes = await store.read(key); // it may have ended meanwhile
      if (!bytes) return [];
      const prefix = `${layout.round(lineage, step, first, last)}${chunk}/`;
      const said = decodeStored<ChunkInPlay>(bytes, store.uri + key, shape);
      return [{ ...said, standing: standingOf(said), lineage, step, prefix }];
    }),
  );
  return chunks.flat();
}

/** One key for each chunk: an attempt that was taken over may still be at work, and one whose worker died left its object. */
function newestAttempts(keys: readonly string[]): ReadonlyMap<string, NonNullable<ReturnType<typeof chunkInPlayOf>>> {
  const newest = new Map<string, readonly [key: string, of: NonNullable<ReturnType<typeof chunkInPlayOf>>]>();
  for (const key of keys) {
    const of = chunkInPlayOf(key);
    if (of === null) continue;
    const chunk = layout.attemptsInPlay(of);
    if (of.beganAtMs >= (newest.get(chunk)?.[1].beganAtMs ?? 0)) newest.set(chunk, [key, of]);
  }
  return new Map(newest.values());
}

/**
 * A turn may take long, and its worker says so all the same: silence means more than a slow turn. Whether a process of
 * another host has ended is not seen from here.
 */
function standingOf({ worker, nextByMs = Infinity }: ChunkInPlay): Standing {
  if (isGone(worker)) return 'left';
  return Date.now() > nextByMs + clocksMs ? 'silent' : 'in play';
}

export async function listInPlay(place: RunPlace, { environment, limit }: Looked): Promise<ListedRollouts> {
  const chunks = await chunksInPlay(place);
  const listing = chunks.flatMap((chunk) => chunk.rollouts.map((rollout) => listed(rollout, chunk)));
  const found = environment === undefined ? listing : listing.filter((one) => one.environment === environment);
  const all = listing.filter((one) => !isLeft(one));
  const byEnvironment: Record<string, number> = {};
  for (const one of all) byEnvironment[one.environment] = (byEnvironment[one.environment] ?? 0) + 1;
  const sum = <One>(ones: readonly One[], of: (one: One) => number): number =>
    ones.reduce((total, one) => total + of(one), 0);
  return {
    rollouts: found
      .toSorted(
        (a, b) =>
          Number(isLeft(a)) - Number(isLeft(b)) || a.begunAtMs - b.begunAtMs || a.group - b.group || a.index - b.index,
      )
      .slice(0, limit),
    matches: found.length,
    inPlay: all.length,
    silent: all.filter(({ standing }) => standing === 'silent').length,
    left: listing.length - all.length,
    byEnvironment,
    waiting: sum(chunks, ({ waiting }) => waiting),
    ended: sum(chunks, ({ ended }) => ended),
    chunks: chunks.length,
    workers: new Set(chunks.filter((one) => !isLeft(one)).map(({ worker }) => worker)).size,
    turns: sum(all, ({ turns }) => turns),
    tokens: sum(all, ({ tokens }) => tokens),
    sandboxes: all.filter(({ sandbox }) => sandbox !== undefined).length,
  };
}

function isLeft({ standing }: Pick<FollowedChunk, 'standing'>): boolean {
  return standing === 'left';
}

function listed(inPlay: RolloutInPlay, chunk: FollowedChunk): ListedRollout {
  const { newest: _, notes: __, recalled, kept: ___, ...rollout } = inPlay;
  return { ...rollout, fromStore: decodeRanges(recalled).length, step: chunk.step, ...playedBy(chunk) };
}

export function playedBy({ worker, standing, attempt, writtenAtMs }: FollowedChunk): PlayedBy {
  return { worker: shownWorker(worker), standing, attempt, writtenAtMs };
}

/** Without the start of the process, which only tells it from a later one of its number. */
function shownWorker(worker: string): string {
  return worker.split(':').slice(0, 2).join(':');
}
