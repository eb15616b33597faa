import { decodeRowsMax, keyValueBytesMax, prefillPositionsMax, promptCacheBytesMax } from '../limits.ts';

/** What a sampler may have in memory at once. None of it touches the bits: more wait, or are computed in more runs. */
export interface SamplingLimits {
  /** Keys and values of all batches together; rows beyond it wait. */
  readonly keyValueBytesMax: number;
  /** Keys and values of the smallest batch when nothing else runs: rows that need more are refused. */
  readonly aloneBytesMax: number;
  /** Keys, values and logits of prompts kept for rows to come. */
  readonly promptBytesMax: number;
  /** Positions of one prefill run, unless a single prompt has more. */
  readonly prefillPositionsMax: number;
  /** Rows decoded together. */
  readonly rowsMax: number;
}

/** A sampler in a process that has no bound of its own. */
export const defaultSamplingLimits: SamplingLimits = {
  keyValueBytesMax,
  aloneBytesMax: keyValueBytesMax,
  promptBytesMax: promptCacheBytesMax,
  prefillPositionsMax,
  rowsMax: decodeRowsMax,
};

/** What each of `count` lanes has of it. */
export function laneShare(limits: SamplingLimits, count: number): SamplingLimits {
  const share = (amount: number): number => Math.floor(amount / count);
  return {
    keyValueBytesMax: share(limits.keyValueBytesMax),
    aloneBytesMax: share(limits.aloneBytesMax),
    promptBytesMax: share(limits.promptBytesMax),
    prefillPositionsMax: share(limits.prefillPositionsMax),
    rowsMax: Math.max(rowsOfLaneMin, share(limits.rowsMax)),
  };
}

/** A lane that may have fewer rows than this does not pay for its steps. */
const rowsOfLaneMin = 8;
