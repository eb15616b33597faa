import type { BatchFill } from '../../settings/run.ts';
import { chunksInPlayMax } from '../../limits.ts';

/**
 * How many groups are sampled at a time, and ahead of the step that trains. The window is the groups that are leased
 * and not yet trained on: some are in flight, some wait for a batch.
 */

/** Measurements of this run in seconds; null before the first. */
export interface SamplingPace {
  /** Duration of the slowest recent chunk. */
  readonly playS: number | null;
  /** Time from one batch to the next, newest last. */
  readonly batchS: number | null;
  /** Groups in flight while the newest batches were sampled (see {@link inPlayOf}); null before the first. */
  readonly inPlay: number | null;
  /**
   * Share of a chunk's time during which one of its rollouts runs: if one takes long, few of the leased ones are in
   * flight.
   */
  readonly occupancy: number;
}

/** Newest parts of chunks whose time says how long the next will take. */
export const partsRemembered = 16;

/** Chunks that take less than this are quick: the results of their activities have their groups, and no signal tells of them. */
export const slowPlayS = 2;

/** Chunks of a batch of slow rollouts: a single delay then holds up a small part of the batch. */
const chunksPerBatch = 16;
/**
 * The same for a run that shares its rollout workers: a chunk that plays is not interrupted, and the chunks of another run
 * wait for it.
 */
const chunksPerSharedBatch = 64;

/**
 * Chunks of a batch for each worker if rollouts are quick or not yet measured. A single worker gets at least
 * `groupsMin` groups in each.
 */
const quick = { chunksPerBatch: 2, groupsMin: 8 };

/**
 * How many steps sampling may be ahead of training: samples beyond `max_off_policy_steps` would be too old for their
 * step.
 */
export function levelOf(spec: { readonly maxAsyncLevel: number; readonly maxOffPolicySteps: number }): number {
  return Math.min(spec.maxAsyncLevel, spec.maxOffPolicySteps);
}

/**
 * Factor on the groups in flight to start ahead, and the extra part of a batch: a batch is then ready when the trainer
 * is.
 */
const [inPlayMore, aheadMore] = [1.15, 0.25];

/**
 * How many groups the window holds: a batch, and a little more than is in flight while one is trained; at least a batch
 * more, unless fewer steps may be sampled for, and at most `level`.
 * Groups that wait for the trainer only get older: if rollouts are quick beside steps, few are ahead, whatever the
 * level. If they are slow, the whole window is in flight, and it grows to the level. Before the first measurement it
 * holds a batch more than is in training. If the file sets the rollouts in flight (prime-rl's `max_inflight_rollouts`),
 * the window holds as many as that needs, if they can be trained on in time.
 */
export function windowGroups(input: {
  readonly groupsPerBatch: number;
  readonly level: number;
  readonly oversamplingFactor: number;
  /** Steps that may now be sampled for, fractions and the current one included; and those to the end of the run. */
  readonly stepsLeft: number;
  readonly stepsToEnd: number;
  /** Largest number of versions behind. */
  readonly within: number;
  readonly maxConcurrent: number | null;
  readonly rolloutsPerExample: number;
  readonly pace: SamplingPace;
}): number {
  const { groupsPerBatch, level, oversamplingFactor, stepsLeft, pace } = input;
  const wanted = aheadOf(groupsPerBatch, pace);
  const ahead = Math.ceil(groupsPerBatch * (Math.max(0, Math.min(level, wanted, stepsLeft - 1)) + oversamplingFactor));
  const inFlight = groupsAtOnce(input);
  if (inFlight === null) return ahead;
  const trainable = groupsPerBatch * Math.min(input.within, input.stepsToEnd);
  return Math.max(ahead, Math.min(inFlight + groupsPerBatch, trainable));
}

/** A batch that was taken: the average groups in flight while it was sampled, and the duration. */
export interface SampledBatch {
  readonly inPlay: number;
  readonly seconds: number;
}

/** Number of newest batches: for the maximum, and for the mean of groups with a tail. */
const batchesLookedAt = { most: 4, mean: 8 };
export const batchesRemembered = batchesLookedAt.mean;

/**
 * Groups in flight of the batch with the most. If there is a tail, the average over all time: steps wait for late groups, and
 * the quick steps after such a wait would grow the window until more groups are late.
 */
export function inPlayOf(batches: readonly SampledBatch[], hasTail: boolean): number | null {
  if (batches.length === 0) return null;
  if (!hasTail) return Math.max(...batches.slice(-batchesLookedAt.most).map(({ inPlay }) => inPlay));
  const seconds = batches.reduce((sum, batch) => sum + batch.seconds, 0);
  return batches.reduce((sum, batch) => sum + batch.inPlay * batch.seconds, 0) / seconds;
}

/** Ratio of the longest to the middle duration from which groups have a tail. */
const tailRatio = 2.5;

/** Whether some of the newest groups took much longer than others. */
export function haveTail(playS: readonly number[]): boolean {
  const sorted = playS.toSorted((a, b) => a - b);
  return sorted.length > 0 && sorted.at(-1)! > tailRatio * sorted[Math.floor((sorted.length - 1) / 2)]!;
}

/**
 * How many groups may be held when others are leased, so that each can be trained on before it is too old: stragglers
 * count here. If there is a tail, half as many, so that each has twice the time.
 */
export function trainableGroups(of: {
  readonly groupsPerBatch: number;
  /** Step of the batch being collected. */
  readonly step: number;
  /** The version that groups are leased with. */
  readonly policyStep: number;
  readonly maxOffPolicySteps: number;
  readonly hasTail: boolean;
  readonly maxConcurrent: number | null;
}): number {
  const steps = of.policyStep + of.maxOffPolicySteps + 1 - of.step + 1;
  // If a file bounds the rollouts in flight, groups leased ahead begin later, with a newer version.
  if (!of.hasTail || of.maxConcurrent !== null) return of.groupsPerBatch * steps;
  return of.groupsPerBatch * Math.max(Math.min(2, steps), Math.floor(steps / 2));
}

/** Judged groups, newest last, and how many were kept. */
export interface JudgedGroups {
  readonly groups: number;
  readonly kept: number;
}

/** The newest groups, worth this many batches. */
const batchesJudged = 4;

export function judgedLately(
  before: readonly JudgedGroups[],
  one: JudgedGroups,
  groupsPerBatch: number,
): readonly JudgedGroups[] {
  const judged = [...before, one];
  let over = judged.reduce((sum, { groups }) => sum + groups, 0) - batchesJudged * groupsPerBatch;
  const from = judged.findIndex(({ groups }) => (over -= groups) < 0);
  return judged.slice(Math.max(0, from));
}

/** Bound on the groups issued for a batch, as a multiple of the batch. */
const issuedPerKeptMax = 4;

/**
 * Number of groups to issue for a batch: those that a filter is expected to drop are added. A batch that may be partial
 * (`batch_fill`) gets no addition.
 */
export function issuedPerBatch(groupsPerBatch: number, judged: readonly JudgedGroups[], fill: BatchFill): number {
  const sum = (of: keyof JudgedGroups): number => judged.reduce((total, one) => total + one[of], 0);
  const groups = sum('groups');
  if (fill !== 'full' || groups < groupsPerBatch) return groupsPerBatch;
  return Math.ceil(groupsPerBatch * Math.min(issuedPerKeptMax, groups / Math.max(1, sum('kept'))));
}

/** Unit: batches. */
function aheadOf(groupsPerBatch: number, { playS, batchS, inPlay }: SamplingPace): number {
  if (inPlay !== null) return Math.max(1, (inPlayMore * inPlay) / groupsPerBatch + aheadMore);
  return 1 + (playS === null || batchS === null ? 1 : Math.ceil(playS / Math.max(batchS, 0.05)));
}

/** Most groups of a chunk. Never so few that more chunks would be in flight than a commit can name. */
export function chunkGroups(input: {
  readonly groupsPerBatch: number;
  /** Target for groups in flight. */
  readonly window: number;
  /** Number of rollout workers, as far as known. */
  readonly workers: number;
  readonly pace: Pick<SamplingPace, 'playS'>;
  /** Whether other runs have the same workers. */
  readonly isShared: boolean;
}): number {
  const { groupsPerBatch, window, workers, pace, isShared } = input;
  const { playS } = pace;
  const chunks = isShared ? chunksPerSharedBatch : chunksPerBatch;
  const wanted =
    playS === null || playS < slowPlayS
      ? workers > 1
        ? Math.ceil(groupsPerBatch / quick.chunksPerBatch / workers)
        : Math.max(quick.groupsMin, Math.ceil(groupsPerBatch / quick.chunksPerBatch))
      : Math.ceil(groupsPerBatch / Math.max(chunks, 2 * workers));
  return Math.max(Math.ceil(window / chunksInPlayMax), Math.min(wanted, groupsPerBatch));
}

/** Factor on the rollouts in flight to lease, so that workers have work when a rollout ends. */
const leasedAhead = 1.25;
const occupancyMin = 0.05;

/** How many groups to have under way for the wanted rollouts in flight; null = unbounded. */
export function groupsAtOnce(of: {
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
  /** Groups of the window in flight or waiting for a batch. */
  readonly held: number;
  /** Bound on held groups, and the number held, stragglers included. */
  readonly trainable: number;
  readonly heldInAll: number;
  /** Groups in flight, stragglers included. */
  readonly playing: number;
  readonly chunks: number;
  readonly chunkGroups: number;
  readonly rolloutsPerExample: number;
  readonly maxConcurrent: number | null;
  readonly pace: Pick<SamplingPace, 'occupancy'>;
}): number {
  const { window, held, trainable, heldInAll, playing, chunks, chunkGroups: size } = input;
  // Workers enforce the bound on rollouts in flight: groups beyond it are leased ahead.
  const atOnce = (groupsAtOnce(input) ?? Infinity) - playing;
  const room = Math.min(window - held, trainable - heldInAll, atOnce, (chunksInPlayMax - chunks) * size);
  return Math.max(room, playing === 0 && window > held ? 1 : 0);
}

/**
 * Least room for a lease: each round costs the run a task, an activity and a message. Two chunks, if those are a small
 * part of the window and most of it is in flight; groups leased ahead bridge the time.
 */
export function leastRoom(input: {
  readonly window: number;
  /** Groups of the window in flight. */
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
