import type { RolloutPriority } from '../../core/fleet/rollout-turns.ts';
import { generateAttemptsMax, replaysMax } from '../../core/limits.ts';
import { describeChunk, type LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import { addLost, nothingLost, type LostWork } from '../../core/rl/lost-work.ts';
import type { PlayedPart } from '../../core/rl/rollout/played-part.ts';
import type { RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { rolloutsFor } from '../options.ts';

export interface ChunkPlayed {
  /** Parts with groups that the run may not have received. */
  readonly parts: readonly PlayedPart[];
  readonly adopted: number;
  readonly lost: LostWork;
}

/** Waits for a person when nothing else helps. */
interface Waits {
  pause(reason: string): void;
  untilResumed(): Promise<void>;
}

/**
 * Generates a chunk until its groups are scored. Work that one attempt leaves unfinished is leased again, with its
 * turns so far. Only deadlines count as attempts, and only while the inference server answers: neither a worker's
 * shutdown, a missing server nor a budget that is used up ends a rollout.
 */
export async function playChunk(
  waits: Waits,
  input: {
    readonly run: RunHandle;
    readonly spec: Pick<RunSpec, 'heartbeatTimeoutS' | 'queue'>;
    readonly round: SamplingRound;
    readonly chunk: LeasedChunk;
    readonly label: string;
    readonly workers: number;
    readonly takesNewest: boolean;
    /** Workflow to notify of groups as they end; absent: all of them are scored together. */
    readonly tells?: string;
    /** Groups that have not ended, as ranges; absent: all. */
    readonly only?: string;
    /** In the queue of the rollout workers. */
    readonly priority?: RolloutPriority;
  },
): Promise<ChunkPlayed> {
  const { spec, chunk, label: of, priority, ...asked } = input;
  const label = `${of} (${describeChunk(chunk)})`;
  let [deadlines, replays] = [0, 0];
  let generateS = 0;
  let lost = nothingLost;
  let adopted: number | undefined;
  const parts: PlayedPart[] = [];
  for (let attempt = 1; ; attempt++) {
    const isLast = deadlines === generateAttemptsMax - 1;
    const summary = attempt === 1 ? label : `${label}, lease ${attempt}`;
    const played = await rolloutsFor(spec, priority).playGroups.executeWithOptions({ summary }, [
      { ...asked, chunk, attempt, isLast, leavesFailed: replays < replaysMax },
    ]);
    lost = addLost(lost, played.lost ?? nothingLost);
    adopted ??= played.adopted; // later attempts adopt what earlier ones generated
    parts.push(...played.parts.map((part) => ({ ...part, generateS: generateS + part.generateS })));
    if (played.unfinished === undefined) return { parts, adopted, lost };
    generateS += played.seconds;
    if (played.notReady) {
      const { since, message } = played.notReady;
      const left = `${played.unfinished.count} rollouts wait, ${played.rollouts} are finished`;
      waits.pause(`no-signal: the inference server is not ready since ${since}: ${message} (${left}.)`);
      await waits.untilResumed();
    } else if (played.overBudget !== undefined) {
      waits.pause(`budget: ${played.overBudget}`);
      await waits.untilResumed();
    } else if (played.endedBy === 'deadline') {
      deadlines += 1;
    } else if (played.endedBy === 'failures') {
      replays += 1;
    }
  }
}
