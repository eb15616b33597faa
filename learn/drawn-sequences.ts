import { keptPermutation } from '../core/numpy-shuffle.ts';
import type { TrainSample } from '../core/rl/learning/batch.ts';
import { packSequences, type PackedSequences } from '../core/rl/learning/sequences.ts';
import type { RowPlace, RunHandle } from '../core/rl/run-state.ts';
import { RatchetError } from '../core/errors.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { SftRow } from '../load/data/sft-data.ts';
import type { ChatTokenizer } from '../engine/index.ts';
import { inPasses, samplesOf, storedRows } from './sft-rows.ts';

/**
 * Sequences of a step of a run with `[data]`, from the position in its rows: each row once a pass, in prime-rl's order,
 * `Dataset.shuffle(seed + pass)`.
 */
export async function drawSequences(
  run: RunHandle,
  spec: RunSpec,
  { tokenizer, from }: { readonly tokenizer: ChatTokenizer; readonly from: RowPlace },
): Promise<PackedSequences> {
  const { rows: ref, seqLen, batchSize, shuffle } = spec.data!;
  const rows = await storedRows<SftRow>(run, ref);
  const placeOf = shuffle
    ? inPasses(rows.length, (pass) => keptPermutation(rows.length, spec.seed + pass))
    : (row: number): number => row % rows.length;
  const samplesAt = (row: number): readonly TrainSample[] =>
    samplesOf(rows.row(placeOf(row)), tokenizer, { ...spec.sampling, isWhole: true });
  const packed = packSequences(samplesAt, { from, count: batchSize, seqLen, rowsMax: rows.length });
  if (packed !== null) return packed;
  throw new RatchetError(
    'ConfigInvalid',
    `data.seq_len: none of the ${rows.length} rows of ${ref.path} has a token of the assistant's among its first ${seqLen}: there is nothing to learn. Make seq_len longer.`,
  );
}
