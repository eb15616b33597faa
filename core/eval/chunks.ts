import { evaluationChunksAtOnce, evaluationChunksMax } from '../limits.ts';

/** How an evaluation is cut: a chunk of examples is one activity. */
interface EvaluationChunks {
  readonly chunkExamples: number;
  readonly chunks: number;
  readonly chunksAtOnce: number;
  readonly atOnce: number;
}

/**
 * Few enough for one history, and each large enough that its rollouts fill what may be in flight. `chunkExamples` of an earlier attempt
 * stays: what lies in the store is named by it.
 */
export function cutEvaluation(of: {
  readonly examples: number;
  readonly rolloutsPerExample: number;
  /** −1 = no bound. */
  readonly maxConcurrent: number;
  readonly chunkExamples?: number | undefined;
}): EvaluationChunks {
  const { examples, rolloutsPerExample } = of;
  const inFlight = of.maxConcurrent < 1 ? examples * rolloutsPerExample : of.maxConcurrent;
  const chunkExamples =
    of.chunkExamples ??
    Math.max(1, Math.ceil(examples / evaluationChunksMax), Math.ceil(inFlight / rolloutsPerExample));
  const chunks = Math.ceil(examples / chunkExamples);
  const chunksAtOnce = Math.max(1, Math.min(chunks, evaluationChunksAtOnce, Math.ceil(inFlight / rolloutsPerExample)));
  return { chunkExamples, chunks, chunksAtOnce, atOnce: Math.max(1, Math.ceil(inFlight / chunksAtOnce)) };
}

/** The positions of a chunk's examples: from, and up to but without to. */
export function positionsOf(
  chunk: number,
  { chunkExamples, examples }: { readonly chunkExamples: number; readonly examples: number },
): { readonly from: number; readonly to: number } {
  return { from: chunk * chunkExamples, to: Math.min(examples, (chunk + 1) * chunkExamples) };
}
