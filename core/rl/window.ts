import { chunksInPlayMax } from '../limits.ts';

/**
 * How many groups are sampled at a time, and ahead of the step that trains. Groups that are leased and not trained yet are the window: some
 * are in play, some wait for a batch.
 */

/** What was measured of this run; null while nothing was. Seconds. */
export interface SamplingPace {
  /** What the slowest of the newest chunks took. */
  readonly playS: number | null;
  /** From one batch to the next, newest last. */
  readonly batchS: number | null;
  /** Groups in play on average while the newest batches were sampled, of the batch with most; null in runs recorded before it counted. */
  readonly inPlay: number | null;
  /** Share of a chunk's time in which one of its rollouts is played: of some that are leased few are in flight, where one takes long. */
  readonly occupancy: number;
}

/** Rollouts that take longer than this are sampled continuously; below, one round for each step has fewer events. */
export const slowPlayS = 2;

/** A batch is played in about so many chunks where rollouts are slow: what one of them holds up is a small part of it. */
const chunksPerBatch = 16;

/** Quick rollouts are played in so few for each worker, by one worker of so many groups at least; so are those of which nothing was measured yet. */
const quick = { chunksPerBatch: 2, groupsMin: 8 };

/**
 * How many steps sampling may be ahead of training: what is sampled further ahead than `max_off_policy_steps` would be too old for the step
 * that it comes for.
 */
export function levelOf(spec: { readonly maxAsyncLevel: number; readonly maxOffPolicySteps: number }): number {
  return Math.min(spec.maxAsyncLevel, spec.maxOffPolicySteps);
}

/**
 * Whether the window is kept full across steps, rather than filled once for each: beyond one step ahead always, one step ahead where rollouts
 * are slow. Examples that are begun at a given pace (`tasks_per_minute`) are begun round by round.
 */
export function isContinuous(level: number, { playS }: Pick<SamplingPace, 'playS'>, isPaced: boolean): boolean {
  if (isPaced || level === 0) return false;
  return level > 1 || (playS ?? 0) >= slowPlayS;
}

/** Of what was in play so much is begun ahead, and a quarter of a batch more: a batch is ready when the trainer is. */
const [inPlayMore, aheadMore] = [1.15, 0.25];

/**
 * How many groups the window holds: a batch, and what is in play while one is trained, a little more; a batch more at least, unless fewer
 * steps may be sampled for, and at most `level`.
 * What waits for the trainer grows old for nothing: where rollouts are quick beside steps, few are ahead, whatever the level. Where they are
 * slow all of the window is in play, and it grows to the level. Before anything was measured it holds a batch more than is trained meanwhile. Where it is
 * said how many rollouts are to be in flight (prime-rl's `max_inflight_rollouts`), as many as that takes, if they can be trained by then.
 */
export function windowGroups(input: {
  readonly groupsPerBatch: number;
  readonly level: number;
  readonly oversamplingFactor: number;
  /** Steps that may be sampled for by now, fractions among them, the one in question included; and those to the end of the run. */
  readonly stepsLeft: number;
  readonly stepsToEnd: number;
  /** Versions behind that may be trained. */
  readonly within: number;
  readonly maxConcurrent: number | null;
  readonly rolloutsPerExample: number;
  readonly pace: SamplingPace;
}): number {
  const { groupsPerBatch, level, oversamplingFactor, stepsLeft, pace } = input;
  const wanted = aheadOf(groupsPerBatch, pace);
  const ahead = Math.ceil(groupsPerBatch * (Math.max(0, Math.min(level, wanted, stepsLeft - 1)) + oversamplingFactor));
  const inFlight = leasedFor(input);
  if (inFlight === null) return ahead;
  const trainable = groupsPerBatch * Math.min(input.within, input.stepsToEnd);
  return Math.max(ahead, Math.min(inFlight + groupsPerBatch, trainable));
}

/** In batches. */
function aheadOf(groupsPerBatch: number, { playS, batchS, inPlay }: SamplingPace): number {
  if (inPlay !== null) return Math.max(1, (inPlayMore * inPlay) / groupsPerBatch + aheadMore);
  return 1 + (playS === null || batchS === null ? 1 : Math.ceil(playS / Math.max(batchS, 0.05)));
}

/** Of how many groups a chunk is at most: never of so few that more of them would be in play than a commit can name. */
export function chunkGroups(input: {
  readonly groupsPerBatch: number;
  /** Groups that are to be in play. */
  readonly window: number;
  /** Rollout workers, as far as is known. */
  readonly workers: number;
  readonly pace: Pick<SamplingPace, 'playS'>;
}): number {
  const { groupsPerBatch, window, workers, pace } = input;
  const { playS } = pace;
  const wanted =
    playS === null || playS < slowPlayS
      ? workers > 1
        ? Math.ceil(groupsPerBatch / quick.chunksPerBatch / workers)
        : Math.max(quick.groupsMin, Math.ceil(groupsPerBatch / quick.chunksPerBatch))
      : Math.ceil(groupsPerBatch / Math.max(chunksPerBatch, 2 * workers));
  return Math.max(Math.ceil(window / chunksInPlayMax), Math.min(wanted, groupsPerBatch));
}

/** Of what may be in flight so much is leased: workers have something to begin when a rollout ends. */
const leasedAhead = 1.25;
const occupancyMin = 0.05;

/** How many groups are leased to have so many rollouts in flight; null = as many as there are. */
function leasedFor(of: {
  readonly maxConcurrent: number | null;
  readonly rolloutsPerExample: number;
  readonly pace: Pick<SamplingPace, 'occupancy'>;
}): number | null {
  const { maxConcurrent, rolloutsPerExample, pace } = of;
  if (maxConcurrent === null) return null;
  return Math.ceil((leasedAhead * maxConcurrent) / rolloutsPerExample / Math.max(occupancyMin, pace.occupancy));
}

/** How many more groups may be leased. */
export function roomInWindow(input: {
  readonly window: number;
  /** Groups of the window that are in play, or wait for a batch. */
  readonly held: number;
  /** Groups in play, stragglers among them. */
  readonly playing: number;
  readonly chunks: number;
  readonly chunkGroups: number;
  readonly rolloutsPerExample: number;
  readonly maxConcurrent: number | null;
  readonly pace: Pick<SamplingPace, 'occupancy'>;
}): number {
  const { window, held, playing, chunks, chunkGroups: size } = input;
  // Workers see to it that no more are in flight: beyond that some are leased ahead of their turn.
  const atOnce = (leasedFor(input) ?? Infinity) - playing;
  const room = Math.min(window - held, atOnce, (chunksInPlayMax - chunks) * size);
  return Math.max(room, playing === 0 && window > held ? 1 : 0);
}

/**
 * With less room than this nothing is leased: each round costs the run a task, an activity and a message. Two chunks, where those are a small
 * part of the window and most of it is in play; what is leased ahead bridges the time.
 */
export function leastRoom(input: {
  readonly window: number;
  /** Groups of the window that are in play. */
  readonly inPlay: number;
  readonly chunkGroups: number;
}): number {
  const { window, inPlay, chunkGroups: size } = input;
  if (inPlay === 0) return 0;
  return 2 * inPlay < window ? size : Math.max(size, Math.min(2 * size, Math.floor(window / 16)));
}

/** Seconds that at least one of these intervals covers. */
export function secondsCovered(intervals: readonly (readonly [from: number, to: number])[]): number {
  let [sum, end] = [0, -Infinity];
  for (const [from, to] of intervals.toSorted(([a], [b]) => a - b)) {
    sum += Math.max(0, to - Math.max(from, end));
    end = Math.max(end, to);
  }
  return sum;
}
