import { setTimeout as delay } from 'node:timers/promises';
import type { PlayedPart } from '../core/rl/rollout/played-part.ts';
import type { GenerateDependencies } from '../play/policy/asked-model.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { ChunkInput } from '../play/chunk-play.ts';
import { type EnteredChunk, enterChunk } from '../play/chunk-room.ts';
import { workerSlots } from '../play/slots.ts';
import { collectChunk, type CollectedChunk } from '../play/collect-chunk.ts';
import { RatchetError } from '../core/errors.ts';
import { refuseOverRound } from '../runs/lineages/lineages.ts';
import { specOf } from '../runs/run-access.ts';
import { GenerationAttempt, type GenerationProgress } from './around/generation-attempt.ts';
import { attemptHere, isRetry, lastProgress, withHeartbeat } from './around/heartbeat.ts';
import { tellParts } from './around/tell-parts.ts';

/** Scored groups of a chunk that its run has not received, and what is unfinished. */
export type PlayedChunk = CollectedChunk;

/** Milliseconds in which a worker that has given a chunk back asks for none: as long as another one takes to restart. */
const restMs = 2_000;
/** How long a chunk that was given back waits for room here, and the interval between looks. */
const holdMs = 3_000;
const lookMs = 100;

export const createPlayGroups =
  (dependencies: GenerateDependencies) =>
  /**
   * Generates the rollouts of a chunk of groups, and scores and filters each group when it has ended. The run is
   * notified at once of groups that end while others of a slow chunk are generated. A retry, like the next attempt,
   * continues from what is stored.
   */
  async (input: ChunkInput): Promise<PlayedChunk> => {
    const attempt = new GenerationAttempt(lastProgress<GenerationProgress>(), attemptHere());
    const play = async (cancelled: AbortSignal, say: () => void): Promise<PlayedChunk> => {
      const spec = await specOf(input.run);
      const entered = enterChunk(input, spec);
      if (mayPassOn(input, spec) && !(await canBegin(entered, attempt, cancelled))) {
        entered.begun();
        workerSlots.rest(restMs);
        throw attempt.passOn();
      }
      const inference = dependencies.inference(spec);
      attempt.silence = () => inference.silence?.() ?? null;
      const { tells, run, workers } = input;
      const tell = (part: PlayedPart): Promise<boolean> => tellParts(tells, { lineage: run.lineage, workers }, part);
      const began = (): void => {
        entered.begun();
        say();
      };
      return collectChunk(dependencies, input, attempt, { cancelled, say: began, tell, isRetry: isRetry() }).finally(
        () => entered.begun(),
      );
    };
    return withHeartbeat(
      (cancelled, say) =>
        play(cancelled, say)
          .catch((error: unknown) => unlessOver(input, error))
          .finally(() => attempt.over()),
      () => attempt.progress(),
    );
  };

/**
 * Whether a chunk without room here goes to whichever other worker has some: else a worker that got the chunks of one
 * that died would play them one after the other, and the restarted one nothing. A quick chunk waits less than it would
 * take to pass it on.
 */
function mayPassOn({ workers = 1 }: ChunkInput, { environments }: RunSpec): boolean {
  return workers > 1 && environments.some(({ program }) => program !== undefined);
}

/** One that another worker gave back waits a while for room. */
async function canBegin(entered: EnteredChunk, attempt: GenerationAttempt, cancelled: AbortSignal): Promise<boolean> {
  if (entered.fits) return true;
  if (!attempt.wasPassedOn) return false;
  for (const end = performance.now() + holdMs; performance.now() < end;) {
    if (entered.hasRoom() || cancelled.aborted) return true; // cancelled: it ends as any other does
    await delay(lookMs, undefined, { signal: cancelled }).catch(() => undefined);
  }
  return false;
}

/** Replaces the error if the round is already over. Its inputs are removed then, so the caller's state is behind the store. */
async function unlessOver({ run, round }: ChunkInput, error: unknown): Promise<never> {
  if (error instanceof RatchetError && error.code === 'CheckpointDamaged') await refuseOverRound(run, round);
  throw error;
}
