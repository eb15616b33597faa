import type { RescoredChunk as ChunkDone } from '../../core/eval/rescore.ts';
import type { Environments } from '../../backends/environments/index.ts';
import { RescoredChunk, type RescoreChunkInput } from '../../play/rescoring/rescored-chunk.ts';
import { withHeartbeat } from '../around/heartbeat.ts';

/**
 * Scores the stored rollouts of one chunk again. A retry adopts the groups that were scored before it, and a finished
 * chunk as it is stored: no judge is asked about them again.
 */
export const createRescoreChunk =
  ({ environments }: { readonly environments?: Environments }) =>
  async (input: RescoreChunkInput): Promise<ChunkDone> => {
    let work: RescoredChunk | null = null;
    return withHeartbeat(
      async (cancelled) => {
        work = await RescoredChunk.open(environments, input, cancelled);
        return work.finish();
      },
      () => work?.progress(),
    );
  };
