import { decodeRowsMax, keyValueBytesMax, prefillPositionsMax, promptCacheBytesMax } from '../limits.ts';

/** How much memory a sampler may use at once. Limits never change results: with less, rows wait longer or are split into more runs. */
export interface SamplingLimits {
  /** Keys and values of all batches together; rows beyond this wait. */
  readonly keyValueBytesMax: number;
  /** Keys and values of the smallest batch when nothing else runs; rows that need more are refused. */
  readonly aloneBytesMax: number;
  /** Keys, values and logits of prompts that are kept for later rows. */
  readonly promptBytesMax: number;
  /** Positions in one prefill run; a single longer prompt may exceed it. */
  readonly prefillPositionsMax: number;
  /** Rows decoded together. */
  readonly rowsMax: number;
}

/** Limits for a sampler in a process without a memory budget. */
export const defaultSamplingLimits: SamplingLimits = {
  keyValueBytesMax,
  aloneBytesMax: keyValueBytesMax,
  promptBytesMax: promptCacheBytesMax,
  prefillPositionsMax,
  rowsMax: decodeRowsMax,
};

/** Divides the limits among `count` lanes. */
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

/** A lane needs at least this many rows to be worth its steps. */
const rowsOfLaneMin = 8;
