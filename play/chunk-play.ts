import { layout } from '../runs/layout.ts';
import { decodeRanges } from '../core/rl/ledger.ts';
import {
  chunkName,
  groupsOfChunk,
  type LeasedChunk,
  type RoundChunk,
  tasksPerMinute,
} from '../core/rl/sampling/chunks.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import { groupSizeOf } from '../core/rl/learning/selection.ts';
import type { GroupLease, Outcome, Rollout } from '../core/rl/rollout/rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { Store } from '../store/index.ts';
import { readLeases } from '../runs/rollouts/leases.ts';
import type { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import { servedPolicy, specOf, storeOf } from '../runs/run-access.ts';
import type { GenerateDependencies } from './policy/asked-model.ts';
import { budgetOfRun, pricesOfRun } from './budget/budgets-around.ts';
import { isBudgetReached } from './budget/rollout-budget.ts';
import type { SharedBudget } from './budget/shared-budget.ts';
import { generateGroups } from './generate-groups.ts';
import { outOfTime } from './timed-out.ts';
import { byGroup } from './groups-in-play.ts';
import { ChunkProgress } from './progress/chunk-progress.ts';
import { Pace } from './pace.ts';
import { leaseRoom } from './chunk-room.ts';
import { openPlayers, type Place, type PlayObserver } from './training-players.ts';

/** Input for generating a chunk's groups, whenever they are scored. */

export interface ChunkInput {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly chunk: RoundChunk & Partial<Pick<LeasedChunk, 'groups'>>;
  /** Counted from 1: each attempt continues what the one before left unfinished. */
  readonly attempt?: number;
  /** Rollouts unfinished at this attempt's deadline end as `timeout`. */
  readonly isLast?: boolean;
  /** Rollouts that fail in their environment are left unfinished, for another worker. */
  readonly leavesFailed?: boolean;
  /** Rollouts switch between two turns to a later version once it is served. */
  readonly takesNewest?: boolean;
  /** Rollout workers that share the run; 1 where it is not known. */
  readonly workers?: number;
  /**
   * Id of the workflow that is notified of groups that end while others of a slow chunk are still generated; absent:
   * the result has all groups.
   */
  readonly tells?: string;
  /** Groups that have not ended, as ranges; absent: all. */
  readonly only?: string;
}

/** Time since which the inference server has answered nothing, and its error. */
export interface NotReady {
  /** ISO time. */
  readonly since: string;
  readonly message: string;
}

/** Why an attempt ended unfinished. */
export type AttemptEnd = 'deadline' | 'cancelled' | 'shutdown' | 'failures' | 'budget';

export interface GeneratedChunk {
  /** → {@link Rollout}: those of groups that are not whole; absent when all are finished. */
  readonly finished?: ObjectRef;
  /** → {@link UnfinishedRollout}; absent when all are finished. */
  readonly unfinished?: ObjectRef;
  readonly endedBy?: AttemptEnd;
  /** Set when the inference server answered nothing at the end of the attempt, which was not ended from outside. */
  readonly notReady?: NotReady;
  /** Why the run's budget ended the attempt, and what to do. */
  readonly overBudget?: string;
  readonly rollouts: number;
  /** Rollouts among them that were stored already and cost nothing. */
  readonly adopted: number;
  readonly seconds: number;
  /** Only in objects stored until 28 November 2026. */
  readonly rolloutS?: number;
  /** Work lost by the attempts before this one, or by a shutdown; absent without any. */
  readonly lost?: LostWork;
}

export interface StoredWork {
  readonly rollouts: number;
  readonly tokens: number;
}

interface AttemptTime {
  readonly signal: AbortSignal;
  readonly deadline: AbortSignal;
  /** Time of the deadline on the clock of `performance.now()`. */
  readonly endsAtMs: number;
}

/** One attempt at a chunk, over all retries of its activity. */
export interface ChunkAttempt extends PlayObserver {
  /** Attempt of the activity, from 1. */
  readonly retry: number;
  readonly notReady: NotReady | null;
  /** Called once, before anything begins; null: everything is stored. */
  goOnFrom(stored: StoredWork | null): void;
  /** One signal for everything in the attempt: raised when it is cancelled, or when its time is over. */
  until(cancelled: AbortSignal, limitMs: number): AttemptTime;
  finish(place: Place): void;
  /** Every rollout is stored; time is all that can be lost from here on. */
  beginScoring(): void;
  end(): void;
  seconds(): number;
  lost(): { readonly lost?: LostWork };
  lostIfItStopsHere(stored: StoredWork): { readonly lost?: LostWork };
  isShutdown(cancelled: AbortSignal): boolean;
}

/** Outcomes that another machine may avoid; a rollout's own failures are not among them. */
const mendedElsewhere: readonly Outcome[] = ['infra_failure', 'oom'];

/** A rollout that is truncated at the end of its last attempt ends so long before it: what its environment does at its end takes time. */
const lastCallMsMax = 10_000;
const lastCallShare = 0.1;

export interface LeasedPlace {
  readonly lease: GroupLease;
  readonly place: Place;
}

/** Place of a chunk in the store, and of what an attempt left unfinished. */
export function chunkPlace({ run, round, chunk, attempt = 1 }: ChunkInput): {
  readonly store: Store;
  readonly prefix: string;
  readonly ended: string;
} {
  const prefix = layout.round(run.lineage, round.step, round.first, round.last) + chunkName(chunk);
  return { store: storeOf(run), prefix, ended: `${prefix}/attempt_${attempt}` };
}

/** A chunk that is played. */
interface OpenedChunk {
  readonly input: ChunkInput;
  readonly spec: RunSpec;
  readonly attempt: ChunkAttempt;
  readonly journal: RolloutJournal;
  readonly players: Awaited<ReturnType<typeof openPlayers>>;
  /** Raised when it is cancelled, or when its time is over, which is `deadline`. */
  readonly signal: AbortSignal;
  readonly deadline: AbortSignal;
  readonly wanted: readonly LeasedPlace[];
  /** Gives back what is not used of the run's budget. */
  readonly leaveBudget: () => Promise<void>;
  readonly progress: ChunkProgress;
  /** Raised when the wall time of the run's budget is over. */
  readonly wall: ReturnType<SharedBudget['wall']>;
}

export async function openChunk(
  dependencies: GenerateDependencies,
  input: ChunkInput,
  attempt: ChunkAttempt,
  { journal, cancelled }: { readonly journal: RolloutJournal; readonly cancelled: AbortSignal },
): Promise<OpenedChunk> {
  const { run, round, chunk, only } = input;
  const { leases, policy, prompts } = await readLeases(run, round.leases);
  const spec = await specOf(run);
  const limitMs = spec.generationTimeoutS * 1000;
  const { signal, deadline, endsAtMs } = attempt.until(cancelled, limitMs);
  const lastCall = {
    atMs: endsAtMs - Math.min(lastCallMsMax, limitMs * lastCallShare),
    begunByMs: endsAtMs - limitMs / 2,
    says: outOfTime(spec),
    isDue: () => attempt.notReady === null,
  };
  const served = await servedPolicy(run, policy);
  const budget = budgetOfRun(run, spec);
  const leaveBudget = (await budget?.enter()) ?? (() => Promise.resolve());
  const wall = budget?.wall() ?? null;
  const isWanted = among(only);
  const wanted = groupsOfChunk(leases, chunk)
    .filter(({ ordinal }) => isWanted(ordinal))
    .flatMap((lease) =>
      Array.from({ length: groupSizeOf(spec, lease.environment) }, (_, index) => placeIn(lease, index)),
    );
  const progress = new ChunkProgress({
    store: storeOf(run),
    chunk: { lineage: run.lineage, step: round.step, first: round.first, last: round.last, chunk: chunkName(chunk) },
    attempt: input.attempt ?? 1,
    journal,
    places: wanted.map(({ place }) => place),
  });
  const players = await openPlayers(dependencies, run, served, {
    journal,
    progress,
    observer: attempt,
    attempt: { ofChunk: input.attempt ?? 1, retry: attempt.retry },
    signal: wall ? AbortSignal.any([signal, wall.signal]) : signal,
    prompts,
    takesNewest: input.takesNewest === true,
    ...(input.isLast === true ? { lastCall } : {}),
    budgets: { shared: budget ? [budget] : [], prices: pricesOfRun(spec) },
  });
  return { input, spec, attempt, journal, players, progress, signal, deadline, wanted, leaveBudget, wall };
}

function among(ranges: string | undefined): (ordinal: number) => boolean {
  if (ranges === undefined) return () => true;
  const wanted = new Set(decodeRanges(ranges));
  return (ordinal) => wanted.has(ordinal);
}

/** What generating left undone. */
interface LeftUndone {
  /** Rollouts that failed and are left to another worker. */
  readonly failed: readonly Rollout[];
  /** Why the run's budget allowed no further calls. */
  readonly overBudget: string | undefined;
}

/** Generates them into the journal; `onFinished` is told of each, and how long it took. */
export async function generateMissing(
  { input, spec, attempt, journal, players, progress, signal, leaveBudget, wall }: OpenedChunk,
  missing: readonly LeasedPlace[],
  { say, onFinished }: { readonly say: () => void; readonly onFinished: (rollout: Rollout, playedS: number) => void },
): Promise<LeftUndone> {
  const { chunk } = input;
  const pace = paceOf(chunk, spec);
  const { room, leave } = leaseRoom(input, spec, missing.length);
  const failed: (readonly [Rollout, playedS: number])[] = [];
  /** Raised when the run's budget is used up: no other group is begun, and those under way go on until they need more. */
  const spent = new AbortController();
  let overBudget: string | undefined;
  const keep = (rollout: Rollout, playedS: number): void => {
    journal.add(rollout);
    onFinished(rollout, playedS);
  };
  try {
    const scoring = await scoringGroups(missing, players);
    const generating = generateGroups({
      groups: byGroup(missing, ({ place }) => place.group),
      nameOf: ({ place }) => place.group,
      areAlone: ({ lease }) => !scoring.has(lease.environment),
      room,
      stop: AbortSignal.any([signal, spent.signal, ...(wall ? [wall.signal] : [])]),
      flush: () => journal.flush(), // close() tries again
      begin: () => pace.next(signal) ?? Promise.resolve(),
      async generate({ lease, place }, together) {
        attempt.begin(place);
        const since = performance.now();
        const rollout = await players.play(lease, place, together).catch((error: unknown) => {
          if (!isBudgetReached(error)) throw error;
          overBudget ??= error.message;
          spent.abort(error);
          throw error; // its group is broken off, and stopping is no failure
        });
        const playedS = (performance.now() - since) / 1000;
        attempt.finish(place);
        if (input.leavesFailed === true && mendedElsewhere.includes(rollout.outcome)) failed.push([rollout, playedS]);
        else keep(rollout, playedS);
      },
    });
    progress.start();
    say(); // a worker may die before the next heartbeat
    await generating;
  } finally {
    // If the others were scored as a group, a rollout generated later would be scored alone, so its failure stands.
    for (const [one, playedS] of failed) {
      if (journal.of(one.group).some(({ judged }) => judged !== undefined)) keep(one, playedS);
    }
    leave();
    attempt.end();
    await progress.stop();
    await journal.close(missing.length);
    await leaveBudget();
  }
  if (wall?.signal.aborted) overBudget ??= wall.says();
  return { failed: failed.map(([rollout]) => rollout), overBudget };
}

/** Environments among these that need all rollouts of a group alive. Room for a whole group is rare where a few rollouts take long. */
async function scoringGroups(
  missing: readonly LeasedPlace[],
  players: OpenedChunk['players'],
): Promise<ReadonlySet<string>> {
  const names = [...new Set(missing.map(({ lease }) => lease.environment))];
  // An environment that cannot be opened fails its rollouts, which say why.
  const scores = await Promise.all(names.map((name) => players.scoresGroups(name).catch(() => true)));
  return new Set(names.filter((_, i) => scores[i]));
}

function paceOf(chunk: RoundChunk, spec: RunSpec): Pace {
  const perMinute = tasksPerMinute(chunk, spec);
  return new Pace(perMinute === null ? 0 : 60_000 / perMinute);
}

function placeIn(lease: GroupLease, index: number): LeasedPlace {
  return { lease, place: { group: lease.ordinal, index, exampleId: lease.exampleId } };
}

export function endOf(attempt: ChunkAttempt, cancelled: AbortSignal, deadline: AbortSignal): AttemptEnd {
  if (cancelled.aborted) return attempt.isShutdown(cancelled) ? 'shutdown' : 'cancelled';
  if (!deadline.aborted) throw new Error('a chunk ended early, and nobody asked it to');
  return 'deadline';
}
