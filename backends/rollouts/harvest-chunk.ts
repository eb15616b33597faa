import type { PlayedPart } from '../../core/rl/played-part.ts';
import type { Rollout } from '../../core/rl/rollout.ts';
import { RolloutJournal } from '../../runs/rollout-journal.ts';
import type { GenerateDependencies } from './asked-model.ts';
import {
  type ChunkAttempt,
  type ChunkInput,
  chunkPlace,
  endOf,
  type GeneratedChunk,
  type LeasedPlace,
  openChunk,
  playMissing,
  type StoredWork,
  timedOut,
} from './chunk-play.ts';
import { leaveUnfinished, leftBefore } from './left-chunk.ts';
import { GroupHarvest } from './group-harvest.ts';
import { byGroup } from './played-together.ts';

export interface HarvestedChunk extends GeneratedChunk {
  /** Those that the run may not have heard of. */
  readonly parts: readonly PlayedPart[];
}

/**
 * Plays a chunk like `generateChunk`, and scores each of its groups when its last rollout has ended. Groups that are stored are not played
 * again, whoever goes on with the chunk.
 */
export async function harvestChunk(
  dependencies: GenerateDependencies,
  input: ChunkInput,
  attempt: ChunkAttempt,
  around: {
    readonly cancelled: AbortSignal;
    readonly say: () => void;
    readonly tell: (part: PlayedPart) => Promise<boolean>;
  },
): Promise<HarvestedChunk> {
  const { cancelled, say, tell } = around;
  const place = chunkPlace(input);
  const { store, prefix, ended } = place;
  const harvest = await GroupHarvest.open(dependencies, input, { signal: cancelled, tell });
  const left = await store.read(`${ended}.json`);
  if (left) return { ...leftBefore(left, `${ended}.json`, attempt), parts: harvest.untold };

  const journal = await RolloutJournal.open(store, `${prefix}/`, input.round.leases.sha256);
  journal.keep();
  const opened = await openChunk(dependencies, input, attempt, { journal, cancelled });
  const wanted = opened.wanted.filter(({ place }) => !harvest.has(place.group));
  for (const { place } of opened.wanted) if (harvest.has(place.group)) journal.release(place.group);
  harvest.onStored = (ordinal) => journal.release(ordinal);
  const stored = (): StoredWork => addSizes(journal.size(), harvest.size);
  attempt.goOnFrom(stored());
  const groups = new GroupsOfChunk(wanted, journal, (group) => harvest.add({ ...group, generateS: attempt.seconds() }));
  const missing = wanted.filter(({ place }) => !journal.has(place));
  const adopted = wanted.length - missing.length + harvest.size.rollouts;
  const failed = await playMissing(opened, missing, {
    say,
    onFinished: (rollout, playedS) => groups.finish(rollout, playedS),
  });
  const isOpen = ({ place }: LeasedPlace): boolean => !harvest.has(place.group) && !journal.has(place);
  const open = wanted.filter(isOpen);
  const endedBy =
    failed.length > 0 && !opened.signal.aborted
      ? 'failures'
      : open.length > 0
        ? endOf(attempt, cancelled, opened.deadline)
        : undefined;
  if (endedBy === 'deadline' && input.isLast === true && attempt.notReady === null) {
    for (const one of open) {
      const late = timedOut(one, journal, opened.spec);
      journal.add(late);
      groups.finish(late, null);
    }
  }
  await harvest.close().catch((reason: unknown) => {
    if (!cancelled.aborted) throw reason;
  });
  const isWhole = wanted.every(({ place }) => harvest.has(place.group));
  if (isWhole) {
    journal.forget();
    const { rollouts } = harvest.size;
    return { rollouts, adopted, seconds: attempt.seconds(), ...attempt.lost(), parts: harvest.untold };
  }
  await journal.flush();
  const rest = await leaveUnfinished(place, {
    journal,
    unfinished: open.map((one) => one.place),
    endedBy: endedBy ?? endOf(attempt, cancelled, opened.deadline),
    adopted,
    attempt,
    stored: stored(),
  });
  journal.forget();
  return { ...rest, parts: harvest.untold };
}

/** Groups some of whose rollouts are to be played; each is handed on when all of it is there. */
class GroupsOfChunk {
  readonly #groups: ReadonlyMap<
    number,
    { missing: number; readonly finish: (playedS: number) => void; readonly end: () => void }
  >;

  constructor(
    wanted: readonly LeasedPlace[],
    journal: RolloutJournal,
    onEnded: (group: {
      readonly lease: LeasedPlace['lease'];
      readonly members: readonly Rollout[];
      readonly playedS: readonly number[];
      readonly heldS: number;
    }) => void,
  ) {
    this.#groups = new Map(
      byGroup(wanted, ({ place }) => place.group).map((places) => {
        const { lease } = places[0]!;
        const playedS: number[] = [];
        let begunAt = performance.now();
        const end = (): void => {
          const heldS = (performance.now() - begunAt) / 1000;
          onEnded({ lease, members: journal.of(lease.ordinal), playedS, heldS });
        };
        const finish = (seconds: number): void => {
          playedS.push(seconds);
          const since = performance.now() - seconds * 1000;
          begunAt = playedS.length === 1 ? since : Math.min(begunAt, since);
        };
        const missing = places.filter(({ place }) => !journal.has(place)).length;
        return [lease.ordinal, { missing, finish, end }];
      }),
    );
    for (const { missing, end } of this.#groups.values()) if (missing === 0) end();
  }

  /** `playedS` is null for one that was given up. */
  finish({ group }: Rollout, playedS: number | null): void {
    const of = this.#groups.get(group)!;
    of.missing -= 1;
    if (playedS !== null) of.finish(playedS);
    if (of.missing === 0) of.end();
  }
}

function addSizes(one: StoredWork, other: StoredWork): StoredWork {
  return { rollouts: one.rollouts + other.rollouts, tokens: one.tokens + other.tokens };
}
