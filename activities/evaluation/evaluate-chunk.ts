import type { ChunkResult } from '../../core/eval/evaluation.ts';
import { chunkLeftSignalName } from '../../core/names.ts';
import { EvaluatedChunk, type EvaluateChunkInput } from '../../play/evaluated-chunk.ts';
import type { AskDependencies } from '../../play/policy/asked-model.ts';
import { leaseAttempt } from '../../play/sandboxes/lease-owner.ts';
import { attemptHere, withHeartbeat, workflowHere } from '../around/heartbeat.ts';
import { tellWorkflow } from '../around/tell-workflow.ts';

/**
 * Generates and scores the examples of one chunk. Every finished rollout, and every scored example, is stored under its
 * own key before it counts: a retry generates only what is missing. Rollouts that an earlier attempt of the evaluation
 * lost to infrastructure are repeated; if the environment scores whole groups, together with the others of their
 * example.
 */
export const createEvaluateChunk =
  (dependencies: AskDependencies) =>
  async (input: EvaluateChunkInput): Promise<ChunkResult> => {
    let work: EvaluatedChunk | null = null;
    return withHeartbeat(
      async (cancelled, say) => {
        const tellLeft = (chunk: number, left: number) => tellWorkflow(chunkLeftSignalName, chunk, left);
        const attempt = leaseAttempt(input.handle.attempt, attemptHere());
        work = await EvaluatedChunk.open(dependencies, input, {
          cancelled,
          tellLeft,
          attempt,
          workflow: workflowHere(),
        });
        say(); // a worker may die before the next heartbeat
        return work.finish();
      },
      () => work?.progress(),
    );
  };
