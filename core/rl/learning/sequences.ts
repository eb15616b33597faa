import type { TrainSample } from './batch.ts';
import type { RowPlace } from '../run-state.ts';

/** Packs samples of `[data]` into sequences of a number of tokens, like prime-rl's supervised trainer. */

export interface PackedSequences {
  /** In order; `sequence` is the index of a sample's sequence, from 0. */
  readonly rows: readonly { readonly sample: TrainSample; readonly sequence: number }[];
  readonly next: RowPlace;
  /** Samples without tokens that count before `seqLen`; they are left out. */
  readonly skipped: number;
  /** Samples that were longer than a sequence. */
  readonly cut: number;
}

/**
 * Samples fill a sequence while they fit; the first that does not begins the next one, and a longer one is cut. A
 * sequence holds `seqLen` predictions: a sample of n tokens takes n − 1 of them, as its first token is not predicted.
 * Samples do not attend to one another, so each stays a row of its own. Source: prime-rl 0.8.1, trainer/sft/data.py
 * (CatDataset, SFTDataset). Null if `rowsMax` rows in a row have no token to learn.
 */
export function packSequences(
  samplesAt: (row: number) => readonly TrainSample[],
  {
    from,
    count,
    seqLen,
    rowsMax,
  }: { readonly from: RowPlace; readonly count: number; readonly seqLen: number; readonly rowsMax: number },
): PackedSequences | null {
  const rows: { sample: TrainSample; sequence: number }[] = [];
  let [sequence, used, skipped, cut, empty] = [0, 0, 0, 0, 0];
  let { row, sample: first } = from;
  for (; empty < rowsMax; row += 1, first = 0) {
    empty += 1;
    for (const [i, whole] of samplesAt(row).entries()) {
      if (i < first) continue;
      const sample = firstTokens(whole, seqLen + 1);
      if (!sample.lossMask.includes(1)) {
        skipped += 1;
        continue;
      }
      const length = whole.tokenIds.length - 1;
      if (used > 0 && used + length > seqLen) [sequence, used] = [sequence + 1, 0];
      if (sequence === count) return { rows, next: { row, sample: i }, skipped, cut };
      if (sample !== whole) cut += 1;
      rows.push({ sample, sequence });
      empty = 0;
      used += length;
      if (used >= seqLen) [sequence, used] = [sequence + 1, 0];
    }
    if (sequence === count) return { rows, next: { row: row + 1, sample: 0 }, skipped, cut };
  }
  return null;
}

function firstTokens(sample: TrainSample, most: number): TrainSample {
  const { tokenIds, lossMask, behaviorLogprobs, advantages } = sample;
  if (tokenIds.length <= most) return sample;
  const first = <T>(values: readonly T[]): T[] => values.slice(0, most);
  return {
    tokenIds: first(tokenIds),
    lossMask: first(lossMask),
    behaviorLogprobs: first(behaviorLogprobs),
    advantages: first(advantages),
  };
}
