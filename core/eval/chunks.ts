import { evaluationChunksAtOnce, evaluationChunksMax } from '../limits.ts';

/** A chunk has so many times the rollouts that it may have in flight. */
const rolloutsBegunInTurn = 2;

/** How an evaluation is cut: a chunk of examples is one activity. */
interface EvaluationChunks {
  readonly chunkExamples: number;
  readonly chunks: number;
  readonly inFlight: number;
  readonly atOnce: number;
}

/**
 * Few enough for one history, and each large enough that several times as many rollouts are to be begun as it may have in flight.
 * `chunkExamples` of an earlier attempt stays: what lies in the store is named by it.
 */
export function cutEvaluation(of: {
  readonly examples: number;
  readonly rolloutsPerExample: number;
  /** −1 = no bound. */
  readonly maxConcurrent: number;
  /** Rollout workers, as far as is known; 1 where it is not. */
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
  // Where there are few chunks each has more of it.
  return { chunkExamples, chunks, inFlight, atOnce: Math.max(share, Math.floor(inFlight / chunks)) };
}

/** The positions of a chunk's examples: from, and up to but without to. */
export function positionsOf(
  chunk: number,
  { chunkExamples, examples }: { readonly chunkExamples: number; readonly examples: number },
): { readonly from: number; readonly to: number } {
  return { from: chunk * chunkExamples, to: Math.min(examples, (chunk + 1) * chunkExamples) };
}
