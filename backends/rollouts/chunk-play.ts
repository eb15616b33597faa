import { setMaxListeners } from 'node:events';
import { layout } from '../../runs/layout.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { chunkName, groupsOfChunk, type RoundChunk, rolloutsAtOnce, tasksPerMinute } from '../../core/rl/chunks.ts';
import type { LostWork } from '../../core/rl/lost-work.ts';
import { groupSizeOf } from '../../core/rl/selection.ts';
import type { GroupLease, Outcome, Rollout } from '../../core/rl/rollout.ts';
import type { ObjectRef, RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { failedRollout } from '../environments/score.ts';
import type { Store } from '../store/index.ts';
import { readLeases } from '../../runs/leases.ts';
import type { RolloutJournal } from '../../runs/rollout-journal.ts';
import { servedPolicy, specOf, storeOf } from '../../runs/run-access.ts';
import type { GenerateDependencies } from './asked-model.ts';
import { eachGroup } from './each-group.ts';
import { Pace } from './pace.ts';
import { slotsOf, workerSlots } from './slots.ts';
import { byGroup, groupsPlayed } from './played-together.ts';
import { timeoutFateOf } from './rollout-limits.ts';
import { openPlayers, type Place, type PlayObserver } from './training-players.ts';

/** What it takes to play the groups of a chunk, whenever they are scored. */

export interface ChunkInput {
  readonly run: RunHandle;
  readonly round: SamplingRound;
  readonly chunk: RoundChunk;
  /** From 1: what one attempt leaves unfinished the next goes on with. */
  readonly attempt?: number;
  /** What is unfinished at this attempt's deadline is given up as `timeout`. */
  readonly isLast?: boolean;
  /** What fails of its environment is left unfinished, for another worker. */
  readonly leavesFailed?: boolean;
  /** A later version that is served while it is played is taken between two turns. */
  readonly takesNewest?: boolean;
  /** Rollout workers that share the run; 1 where it is not known. */
  readonly workers?: number;
  /** Id of the workflow that is told of groups as they end; absent: all of them are scored together. */
  readonly tells?: string;
  /** Of its groups those that have not ended, as ranges; absent: all. */
  readonly only?: string;
}

/** Since when the inference server answers nothing, and what it says instead. */
export interface NotReady {
  /** ISO time. */
  readonly since: string;
  readonly message: string;
}

/** Why an attempt ended with something unfinished. */
export type AttemptEnd = 'deadline' | 'cancelled' | 'shutdown' | 'failures';

export interface GeneratedChunk {
  /** → {@link Rollout}; absent where groups were scored as they ended. */
  readonly finished?: ObjectRef;
  /** → {@link UnfinishedRollout}; absent when all are finished. */
  readonly unfinished?: ObjectRef;
  readonly endedBy?: AttemptEnd;
  /** The inference server answered nothing at the end of the attempt, which was not ended from outside. */
  readonly notReady?: NotReady;
  readonly rollouts: number;
  /** Of those, how many lay in the store already and cost nothing. */
  readonly adopted: number;
  readonly seconds: number;
  /** Of a rollout that was played, on average. */
  readonly rolloutS?: number;
  /** By attempts before the one that gave this, and by a shutdown; absent when nothing was. */
  readonly lost?: LostWork;
}

export interface StoredWork {
  readonly rollouts: number;
  readonly tokens: number;
}

interface AttemptTime {
  readonly signal: AbortSignal;
  readonly deadline: AbortSignal;
  /** Of the deadline, as `performance.now()` tells it. */
  readonly endsAtMs: number;
}

/** One attempt at a chunk, over all retries of its activity. */
export interface ChunkAttempt extends PlayObserver {
  readonly notReady: NotReady | null;
  /** Called once, before anything is begun; null: all of it is stored. */
  goOnFrom(stored: StoredWork | null): void;
  /** One signal for everything in the attempt: raised when it is cancelled, or when its time is over. */
  until(cancelled: AbortSignal, limitMs: number): AttemptTime;
  finish(place: Place): void;
  end(): void;
  seconds(): number;
  lost(): { readonly lost?: LostWork };
  lostIfItStopsHere(stored: StoredWork): { readonly lost?: LostWork };
  isShutdown(cancelled: AbortSignal): boolean;
}

/** Where another machine may do better; reasons of the rollout's own are none. */
const mendedElsewhere: readonly Outcome[] = ['infra_failure', 'oom'];

/** How often finished rollouts and turns are stored while others of their chunk still run. */
const partIntervalMs = 500;

/** A rollout that is truncated at the end of its last attempt ends so long before it: what its environment does at its end takes time. */
const lastCallMsMax = 10_000;
const lastCallShare = 0.1;

export interface LeasedPlace {
  readonly lease: GroupLease;
  readonly place: Place;
}

/** Where a chunk lies in the store, and what an attempt at it left unfinished. */
export function chunkPlace({ run, round, chunk, attempt = 1 }: ChunkInput): {
  readonly store: Store;
  readonly prefix: string;
  readonly ended: string;
} {
  const prefix = layout.round(run.lineage, round.step, round.first, round.last) + chunkName(chunk);
  return { store: storeOf(run), prefix, ended: `${prefix}/attempt_${attempt}` };
}

/** A chunk that is played. */
export interface OpenedChunk {
  readonly input: ChunkInput;
  readonly spec: RunSpec;
  readonly attempt: ChunkAttempt;
  readonly journal: RolloutJournal;
  readonly players: Awaited<ReturnType<typeof openPlayers>>;
  /** Raised when it is cancelled, or when its time is over, which is `deadline`. */
  readonly signal: AbortSignal;
  readonly deadline: AbortSignal;
  readonly wanted: readonly LeasedPlace[];
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
  const players = await openPlayers(dependencies, run, served, {
    journal,
    observer: attempt,
    signal,
    prompts,
    takesNewest: input.takesNewest === true,
    ...(input.isLast === true ? { lastCall } : {}),
  });
  const isWanted = among(only);
  const wanted = groupsOfChunk(leases, chunk)
    .filter(({ ordinal }) => isWanted(ordinal))
    .flatMap((lease) =>
      Array.from({ length: groupSizeOf(spec, lease.environment) }, (_, index) => placeIn(lease, index)),
    );
  return { input, spec, attempt, journal, players, signal, deadline, wanted };
}

function among(ranges: string | undefined): (ordinal: number) => boolean {
  if (ranges === undefined) return () => true;
  const wanted = new Set(decodeRanges(ranges));
  return (ordinal) => wanted.has(ordinal);
}

/** Plays them into the journal; `onFinished` is told of each, and how long it took. Gives those that failed and are left to another worker. */
export async function playMissing(
  { input, spec, attempt, journal, players, signal }: OpenedChunk,
  missing: readonly LeasedPlace[],
  { say, onFinished }: { readonly say: () => void; readonly onFinished: (rollout: Rollout, playedS: number) => void },
): Promise<readonly Rollout[]> {
  const { run, chunk } = input;
  const brokenOff = new AbortController();
  setMaxListeners(0, brokenOff.signal); // whoever waits for its group listens
  const together = groupsPlayed(
    missing.map(({ place }) => place),
    brokenOff.signal,
  );
  const pace = paceOf(chunk, spec);
  const atOnce = rolloutsAtOnce(chunk, spec, input.workers ?? 1);
  const slots = [slotsOf(`${run.store}/${run.name}`, chunk.environment, atOnce), workerSlots];
  const begin = (): Promise<void> => pace.next(signal) ?? Promise.resolve();
  const flushing = setInterval(() => void journal.flush().catch(() => undefined), partIntervalMs); // close() tries again
  const leave = workerSlots.enter(missing.length);
  const failed: (readonly [Rollout, playedS: number])[] = [];
  const keep = (rollout: Rollout, playedS: number): void => {
    journal.add(rollout);
    onFinished(rollout, playedS);
  };
  try {
    const groups = byGroup(missing, ({ place }) => place.group);
    const playing = eachGroup(groups, { slots, stop: signal, brokenOff, begin }, async ({ lease, place }) => {
      attempt.begin(place);
      const since = performance.now();
      const rollout = await players.play(lease, place, together(place));
      const playedS = (performance.now() - since) / 1000;
      attempt.finish(place);
      if (input.leavesFailed === true && mendedElsewhere.includes(rollout.outcome)) failed.push([rollout, playedS]);
      else keep(rollout, playedS);
    });
    say(); // a worker may die before the next heartbeat
    await playing;
  } finally {
    // Where the others were scored together, one that is played later would be scored alone.
    for (const [one, playedS] of failed) {
      if (journal.of(one.group).some(({ judged }) => judged !== undefined)) keep(one, playedS);
    }
    leave();
    clearInterval(flushing);
    attempt.end();
    await journal.close(missing.length);
  }
  return failed.map(([rollout]) => rollout);
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

/** What becomes of a rollout that the last attempt has not ended: one that was begun in time is truncated by then, where it is to be. */
export function timedOut({ lease, place }: LeasedPlace, journal: RolloutJournal, spec: RunSpec): Rollout {
  const turns = journal.turnsOf(place);
  const entry = spec.environments.find(({ name }) => name === lease.environment);
  if (turns.length > 0 && entry && timeoutFateOf(entry, spec) === 'truncate') {
    return { ...place, turns, outcome: 'truncated', isTimedOut: true };
  }
  return failedRollout({ ...place, turns }, 'timeout', `${outOfTime(spec)} It had ${turns.length} finished turns.`);
}

function outOfTime({ generationTimeoutS }: RunSpec): string {
  return `Not finished within generation_timeout = ${generationTimeoutS} s, three times.`;
}
