import type { RunSettings } from '../../settings/run.ts';
import {
  chunkGroups,
  groupsAtOnce,
  haveTail,
  inPlayOf,
  issuedPerBatch,
  type JudgedGroups,
  leastRoom,
  levelOf,
  roomInWindow,
  type SampledBatch,
  type SamplingPace,
  slowPlayS,
  trainableGroups,
  windowGroups,
} from './window.ts';

/** Settings of a run that decide how much it samples. */
interface Settings extends Pick<RunSettings, 'batchFill'> {
  readonly maxAsyncLevel: number;
  readonly maxOffPolicySteps: number;
  readonly maxConcurrent: number | null;
  readonly oversamplingFactor: number;
  /** Rollouts of a group, on average. */
  readonly rolloutsPerExample: number;
  /** Absent where the run is in no pool. */
  readonly queue?: object | undefined;
}

/** Measurements of a run, newest last. */
export interface SamplingMeasured {
  /** Seconds that parts of chunks took. */
  readonly playS: readonly number[];
  /** Share of their time in which one of their rollouts was played. */
  readonly occupancies: readonly number[];
  readonly batches: readonly SampledBatch[];
  /** Seconds from one batch to the next; null before the second. */
  readonly batchS: number | null;
  /** Filter results of groups. */
  readonly judged: readonly JudgedGroups[];
  /** Rollout workers that share the run. */
  readonly workers: number;
}

/** A batch that is collected. */
interface Collected {
  readonly step: number;
  /** Groups of it, as far as that is known where a batch is so many tokens. */
  readonly groupsPerBatch: number;
  /** Steps that may be sampled for by now, fractions among them, this one included. */
  readonly left: number;
  /** Steps to the end of the run, this one included. */
  readonly toEnd: number;
  /** Versions behind that may be trained. */
  readonly within: number;
}

/** Groups that are leased and not trained. */
interface Held {
  /** Kept groups that wait for a batch. */
  readonly waiting: number;
  /** Groups in play for the step in question or a later one. */
  readonly inPlay: number;
  /** All groups in play, stragglers among them. */
  readonly playing: number;
  readonly chunks: number;
  /** The version that groups are leased with. */
  readonly policyStep: number;
}

interface WindowRound {
  readonly step: number;
  readonly count: number;
  readonly groupsPerChunk: number;
}

/** Groups that may be leased beside those that are held. */
export interface WindowRoom {
  /** Groups that may be leased and not trained. */
  readonly window: number;
  /** The round that is leased next: for which step, how many groups, and so many a chunk at most. Null: the window is full. */
  readonly nextRound: (held: Held) => WindowRound | null;
}

/** Seconds that the slowest of the newest parts took; null while none has ended. */
export function slowestOf(playS: readonly number[]): number | null {
  return playS.length === 0 ? null : Math.max(...playS);
}

/** Whether chunks are known to take less time than slow ones. */
export function isQuick(playS: number | null): boolean {
  return playS !== null && playS < slowPlayS;
}

/** Most groups to have under way at once; null = unbounded. */
export function groupsUnderWay(
  { maxConcurrent, rolloutsPerExample }: Pick<Settings, 'maxConcurrent' | 'rolloutsPerExample'>,
  measured: SamplingMeasured,
): number | null {
  return groupsAtOnce({ maxConcurrent, rolloutsPerExample, pace: paceOf(measured) });
}

function paceOf({ playS, batchS, occupancies }: SamplingMeasured): Omit<SamplingPace, 'inPlay'> {
  const occupancy = occupancies.reduce((sum, one) => sum + one, 0) / occupancies.length;
  return { playS: slowestOf(playS), batchS, occupancy: occupancies.length === 0 ? 1 : occupancy };
}

/** Groups of a chunk at most, where so many groups are to be in play. */
export function chunkGroupsOf(
  spec: Pick<Settings, 'maxAsyncLevel' | 'maxOffPolicySteps' | 'queue'>,
  measured: SamplingMeasured,
  { groupsPerBatch, window }: { readonly groupsPerBatch: number; readonly window: number },
): number {
  const { workers } = measured;
  const pace = paceOf(measured);
  // Groups are scored as they end, so one worker gains nothing by two chunks of a step that waits for both, and each costs six events.
  if (workers === 1 && isQuick(pace.playS) && levelOf(spec) <= 1) return Math.max(window, 1);
  return chunkGroups({ groupsPerBatch, window, workers, pace, isShared: spec.queue !== undefined });
}

/** How many groups may be leased for a batch and later ones, from what was measured of the run. */
export function windowRoom(spec: Settings, measured: SamplingMeasured, collected: Collected): WindowRoom {
  const { step, groupsPerBatch: groupsPerKeptBatch, left, toEnd, within } = collected;
  const groupsPerBatch = issuedPerBatch(groupsPerKeptBatch, measured.judged, spec.batchFill);
  const issuedPerKept = groupsPerBatch / groupsPerKeptBatch;
  const hasTail = haveTail(measured.playS);
  const pace = { ...paceOf(measured), inPlay: inPlayOf(measured.batches, hasTail) };
  const level = levelOf(spec);
  // Quick rollouts of a step are generated while the one before it trains: more would be older, and no step sooner.
  // So are those of which nothing was measured yet.
  const isSlow = pace.playS !== null && !isQuick(pace.playS);
  const stepsLeft = level === 1 && !isSlow ? Math.min(1, left) : left;
  const oversamplingFactor = Math.max(1, spec.oversamplingFactor / issuedPerKept);
  const ahead = { level, stepsLeft, stepsToEnd: toEnd, within };
  const window = windowGroups({ ...spec, oversamplingFactor, groupsPerBatch, ...ahead, pace });
  const groupsPerChunk = chunkGroupsOf(spec, measured, { groupsPerBatch: groupsPerKeptBatch, window });
  const nextRound: WindowRoom['nextRound'] = ({ waiting, inPlay, playing, chunks, policyStep }) => {
    const waitingFor = Math.ceil(waiting * issuedPerKept);
    const held = waitingFor + inPlay;
    const trainable = trainableGroups({ ...spec, groupsPerBatch, step, policyStep, hasTail });
    const most = { window, held, trainable, heldInAll: waitingFor + playing, chunks, playing };
    const room = roomInWindow({ ...spec, ...most, chunkGroups: groupsPerChunk, pace });
    // More room is waited for, unless nothing else would come.
    if (room <= 0 || room < leastRoom({ window, inPlay, chunkGroups: groupsPerChunk })) return null;
    const target = Math.min(step + Math.floor(held / groupsPerBatch), step + toEnd - 1);
    return { step: target, count: Math.min(room, groupsPerBatch - (held % groupsPerBatch)), groupsPerChunk };
  };
  return { window, nextRound };
}
