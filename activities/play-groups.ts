import type { PlayedPart } from '../core/rl/rollout/played-part.ts';
import type { GenerateDependencies } from '../play/policy/asked-model.ts';
import type { ChunkInput } from '../play/chunk-play.ts';
import { collectChunk, type CollectedChunk } from '../play/collect-chunk.ts';
import { RatchetError } from '../core/errors.ts';
import { refuseOverRound } from '../runs/lineages/lineages.ts';
import { specOf } from '../runs/run-access.ts';
import { GenerationAttempt, type GenerationProgress } from './around/generation-attempt.ts';
import { attemptHere, isRetry, lastProgress, withHeartbeat } from './around/heartbeat.ts';
import { tellParts } from './around/tell-parts.ts';

/** Scored groups of a chunk that its run has not received, and what is unfinished. */
export type PlayedChunk = CollectedChunk;

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
      const inference = dependencies.inference(await specOf(input.run));
      attempt.silence = () => inference.silence?.() ?? null;
      const { tells, run, workers } = input;
      const tell = (part: PlayedPart): Promise<boolean> => tellParts(tells, { lineage: run.lineage, workers }, part);
      return collectChunk(dependencies, input, attempt, { cancelled, say, tell, isRetry: isRetry() });
    };
    return withHeartbeat(
      (cancelled, say) =>
        play(cancelled, say)
          .catch((error: unknown) => unlessOver(input, error))
          .finally(() => attempt.over()),
      () => attempt.progress(),
    );
  };

/** Replaces the error if the round is already over. Its inputs are removed then, so the caller's state is behind the store. */
async function unlessOver({ run, round }: ChunkInput, error: unknown): Promise<never> {
  if (error instanceof RatchetError && error.code === 'CheckpointDamaged') await refuseOverRound(run, round);
  throw error;
}
