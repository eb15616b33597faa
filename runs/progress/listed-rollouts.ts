import { decodeRanges } from '../../core/rl/ledger.ts';
import type { ChunkInPlay, RolloutInPlay } from '../../core/rl/rollout/in-play.ts';
import type { ListedRollout, ListedRollouts } from '../../core/rl/rollout/progress.ts';
import { isRecord, type Shape } from '../../store/objects.ts';
import { decodeStored } from '../forms/stored-forms.ts';
import { chunkInPlayOf, layout } from '../layout.ts';
import { currentLineage, type RunPlace, storeOf } from '../run-access.ts';

/** A chunk that is played, as its worker last said. */
export interface FollowedChunk extends ChunkInPlay {
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
  const keys = await store.list(layout.allInPlay(await currentLineage(place)));
  const chunks = await Promise.all(
    keys.map(async (key) => {
      const of = chunkInPlayOf(key);
      const bytes = of && (await store.read(key)); // it may have ended meanwhile
      if (!of || !bytes) return [];
      const { lineage, step, first, last, chunk } = of;
      const prefix = `${layout.round(lineage, step, first, last)}${chunk}/`;
      return [{ ...decodeStored<ChunkInPlay>(bytes, store.uri + key, shape), lineage, step, prefix }];
    }),
  );
  return chunks.flat();
}

export async function listInPlay(place: RunPlace, { environment, limit }: Looked): Promise<ListedRollouts> {
  const chunks = await chunksInPlay(place);
  const all = chunks.flatMap((chunk) => chunk.rollouts.map((rollout) => listed(rollout, chunk)));
  const found = environment === undefined ? all : all.filter((one) => one.environment === environment);
  const byEnvironment: Record<string, number> = {};
  for (const one of all) byEnvironment[one.environment] = (byEnvironment[one.environment] ?? 0) + 1;
  const sum = <One>(ones: readonly One[], of: (one: One) => number): number =>
    ones.reduce((total, one) => total + of(one), 0);
  return {
    rollouts: found
      .toSorted((a, b) => a.begunAtMs - b.begunAtMs || a.group - b.group || a.index - b.index)
      .slice(0, limit),
    matches: found.length,
    inPlay: all.length,
    byEnvironment,
    waiting: sum(chunks, ({ waiting }) => waiting),
    ended: sum(chunks, ({ ended }) => ended),
    chunks: chunks.length,
    workers: new Set(chunks.map(({ worker }) => worker)).size,
    turns: sum(all, ({ turns }) => turns),
    tokens: sum(all, ({ tokens }) => tokens),
    sandboxes: all.filter(({ sandbox }) => sandbox !== undefined).length,
  };
}

function listed(inPlay: RolloutInPlay, { step, worker, attempt, writtenAtMs }: FollowedChunk): ListedRollout {
  const { newest: _, notes: __, recalled, kept: ___, ...rollout } = inPlay;
  return {
    ...rollout,
    fromStore: decodeRanges(recalled).length,
    step,
    worker: shownWorker(worker),
    attempt,
    writtenAtMs,
  };
}

/** Without the start of the process, which only tells it from a later one of its number. */
export function shownWorker(worker: string): string {
  return worker.split(':').slice(0, 2).join(':');
}
