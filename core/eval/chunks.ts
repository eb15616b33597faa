import { evaluationChunksAtOnce, evaluationChunksMax } from '../limits.ts';

/** Rollouts of a chunk, as a multiple of those that it may have in flight. */
const rolloutsBegunInTurn = 2;

/** The division of an evaluation: a chunk of examples is one activity. */
interface EvaluationChunks {
  readonly chunkExamples: number;
  readonly chunks: number;
  readonly inFlight: number;
  readonly atOnce: number;
}

/**
 * Cuts into chunks few enough for one history, and large enough that each has several times as many rollouts as it may
 * have in flight. `chunkExamples` of an earlier attempt stays: stored objects are named by it.
 */
export function cutEvaluation(of: {
  readonly examples: number;
  readonly rolloutsPerExample: number;
  /** −1 = unbounded. */
  readonly maxConcurrent: number;
  /** Number of rollout workers; 1 if unknown. */
  readonly workers?: number | undefined;
  readonly chunkExamples?: number | undefined;
}): EvaluationChunks {
  const { examples, rolloutsPerExample, workers = 1 } = of;
  const all = examples * rolloutsPerExample;
  const isBounded = of.maxConcurrent >= 1 && of.maxConcurrent < all;
  const inFlight = isBounded ? of.maxConcurrent : all;
  const wanted = isBounded ? Math.max(evaluationChunksAtOnce, 2 * workers) : workers;
  const chunksAtOnce = Math.max(1, Math.min(wanted, Math.ceil(inFlight / rolloutsPerExample)));
  const share = Math.max(1, Math.floor(inFlight / chunksAtOnce));
  const begun = Math.ceil((share * (isBounded ? rolloutsBegunInTurn : 1)) / rolloutsPerExample);
  const chunkExamples = of.chunkExamples ?? Math.max(1, Math.ceil(examples / evaluationChunksMax), begun);
  const chunks = Math.ceil(examples / chunkExamples);
  // Few chunks get larger shares.
  return { chunkExamples, chunks, inFlight, atOnce: Math.max(share, Math.floor(inFlight / chunks)) };
}

/** The positions of a chunk's examples: from inclusive, to exclusive. */
export function positionsOf(
  chunk: number,
  { chunkExamples, examples }: { readonly chunkExamples: number; readonly examples: number },
): { readonly from: number; readonly to: number } {
  return { from: chunk * chunkExamples, to: Math.min(examples, (chunk + 1) * chunkExamples) };
}
