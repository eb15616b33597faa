import { filterGroups, type FilteredGroups } from '../core/rl/filter-groups.ts';
import type { ObjectRef } from '../core/rl/run-state.ts';
import type { GenerateDependencies } from '../backends/rollouts/asked-model.ts';
import { type ChunkInput, generateChunk, type GeneratedChunk } from '../backends/rollouts/generate-chunk.ts';
import { scoreChunk } from '../backends/rollouts/score-chunk.ts';
import { failpoint } from '../backends/failpoints.ts';
import { specOf } from '../runs/run-access.ts';
import { GenerationAttempt, type GenerationProgress } from './around/generation-attempt.ts';
import { lastProgress, withHeartbeat } from './around/heartbeat.ts';

/** What was scored of a chunk. */
export interface ScoredGroups {
  readonly scored: ObjectRef;
  readonly scoreS: number;
  readonly filtered: FilteredGroups;
}

/** `groups` is absent while something of the chunk is unfinished. */
export type PlayedChunk = GeneratedChunk & { readonly groups?: ScoredGroups };

export const createPlayGroups =
  (dependencies: GenerateDependencies) =>
  /**
   * Generates the rollouts of a chunk of groups, scores them when all have ended, and judges the groups. A retry, like the next attempt, goes
   * on from what is stored.
   */
  async (input: ChunkInput): Promise<PlayedChunk> => {
    const attempt = new GenerationAttempt(lastProgress<GenerationProgress>());
    const play = async (cancelled: AbortSignal, say: () => void): Promise<PlayedChunk> => {
      const generated = await generateChunk(dependencies, input, attempt, { cancelled, say });
      if (generated.unfinished !== undefined) return generated;
      await failpoint('play.generated');
      attempt.beginScoring();
      const { run, round } = input;
      const asked = { finished: generated.finished, signal: cancelled };
      const { scored, groups, seconds } = await scoreChunk(dependencies, input, asked);
      const filtered = filterGroups(groups, { round, scored, spec: await specOf(run) });
      return { ...generated, groups: { scored, scoreS: seconds, filtered }, ...attempt.lost() };
    };
    return withHeartbeat(
      (cancelled, say) => play(cancelled, say).finally(() => attempt.over()),
      () => attempt.progress(),
    );
  };
