import { filterGroups } from '../core/rl/filter-groups.ts';
import { encodeRanges } from '../core/rl/ledger.ts';
import type { PlayedPart } from '../core/rl/played-part.ts';
import type { GenerateDependencies } from '../backends/rollouts/asked-model.ts';
import { type ChunkInput, chunkPlace, type GeneratedChunk } from '../backends/rollouts/chunk-play.ts';
import { generateChunk } from '../backends/rollouts/generate-chunk.ts';
import { storedParts } from '../backends/rollouts/group-harvest.ts';
import { harvestChunk, type HarvestedChunk } from '../backends/rollouts/harvest-chunk.ts';
import { scoreChunk } from '../backends/rollouts/score-chunk.ts';
import { failpoint } from '../backends/failpoints.ts';
import { RatchetError } from '../core/errors.ts';
import { refuseOverRound } from '../runs/lineages.ts';
import { specOf } from '../runs/run-access.ts';
import { GenerationAttempt, type GenerationProgress } from './around/generation-attempt.ts';
import { lastProgress, withHeartbeat } from './around/heartbeat.ts';
import { tellParts } from './around/tell-parts.ts';

/** What was scored of a chunk and its run has not been told; while something is unfinished it is named. */
export type PlayedChunk = HarvestedChunk;

export const createPlayGroups =
  (dependencies: GenerateDependencies) =>
  /**
   * Generates the rollouts of a chunk of groups, scores them, and judges the groups: when all have ended, or each when it has, where the run
   * is told of it at once. A retry, like the next attempt, goes on from what is stored.
   */
  async (input: ChunkInput): Promise<PlayedChunk> => {
    const attempt = new GenerationAttempt(lastProgress<GenerationProgress>());
    const play = async (cancelled: AbortSignal, say: () => void): Promise<PlayedChunk> => {
      const inference = dependencies.inference(await specOf(input.run));
      attempt.silence = () => inference.silence?.() ?? null;
      if (await isHarvested(input)) {
        const { tells, run, workers } = input;
        const tell = (part: PlayedPart): Promise<boolean> => tellParts(tells, { lineage: run.lineage, workers }, part);
        return harvestChunk(dependencies, input, attempt, { cancelled, say, tell });
      }
      const generated = await generateChunk(dependencies, input, attempt, { cancelled, say });
      if (generated.unfinished !== undefined) return { ...generated, parts: [] };
      await failpoint('play.generated');
      attempt.beginScoring();
      return { ...generated, parts: [await scoreWhole(dependencies, input, generated, cancelled)], ...attempt.lost() };
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

/** A chunk that was begun one way is played to its end that way. */
async function isHarvested(input: ChunkInput): Promise<boolean> {
  const { store, prefix } = chunkPlace(input);
  if ((await store.list(`${prefix}.jsonl`)).length > 0) return false;
  return input.tells !== undefined || (await storedParts(input)).length > 0;
}

async function scoreWhole(
  dependencies: GenerateDependencies,
  input: ChunkInput,
  { finished, rollouts, seconds, rolloutS }: GeneratedChunk,
  signal: AbortSignal,
): Promise<PlayedPart> {
  const { run, round } = input;
  const { scored, groups, seconds: scoreS } = await scoreChunk(dependencies, input, { finished: finished!, signal });
  const turns = groups.flatMap((group) => group.rollouts.flatMap((rollout) => rollout.turns));
  return {
    scored,
    filtered: filterGroups(groups, { round, scored, spec: await specOf(run) }),
    ordinals: encodeRanges(groups.map(({ ordinal }) => ordinal)),
    rollouts,
    tokens: turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0),
    generateS: seconds,
    scoreS,
    occupancy: rolloutS === undefined || seconds === 0 ? null : Math.min(1, rolloutS / seconds),
  };
}
