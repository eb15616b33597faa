import { RatchetError } from '../../core/errors.ts';
import type { TrainSample } from '../../core/rl/batch.ts';
import { trainRowsMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';

/** What every loss needs of a row. */
export type MaskedSample = Pick<TrainSample, 'tokenIds' | 'lossMask' | 'rollout'>;

/** Rows of similar length, padded to the longest. Vectors speak of the positions that carry loss, row by row. */
export interface MicroBatch {
  /** Index of each row in the batch it was cut from. */
  readonly rows: readonly number[];
  /** Tokens fed per row: the longest row without its last token, which predicts nothing. */
  readonly width: number;
  /** [rows · width]. */
  readonly tokens: Int32Array;
  /** Flat position that predicts the token, [selected]. */
  readonly selected: BigInt64Array;
  /** The predicted token, [selected]. */
  readonly targets: BigInt64Array;
  /** Row in the whole batch and position in its arrays of each predicted token, [selected] each. */
  readonly sourceRow: Int32Array;
  readonly sourcePosition: Int32Array;
}

/** Rows per micro-batch that fill the matrix kernels and still leave its activations in the cache. */
const rowsTarget = 64;

interface MicroBatchLimits {
  /** Rows of a micro-batch. */
  readonly rowsMax?: number;
  /** Positions with loss of a micro-batch. A single row with more of them is a micro-batch all the same. */
  readonly selectedMax?: number;
}

/**
 * Cuts a batch into micro-batches, by length so that little is padding. The cut depends on the rows alone: the same
 * batch gives the same sums in the same order. Rows without loss are left out.
 */
export function packMicroBatches(
  samples: readonly MaskedSample[],
  positionsMax: number,
  { rowsMax = rowsTarget, selectedMax = Infinity }: MicroBatchLimits = {},
): MicroBatch[] {
  const rows = samples
    .map(({ tokenIds, lossMask }, row) => ({ row, length: tokenIds.length, selected: countLoss(lossMask) }))
    .filter(({ selected }) => selected > 0)
    .toSorted((a, b) => a.length - b.length || a.row - b.row);
  const batches: { rows: number[]; selected: number }[] = [];
  for (const { row, length, selected } of rows) {
    const batch = batches.at(-1);
    const count = (batch?.rows.length ?? 0) + 1;
    const total = (batch?.selected ?? 0) + selected;
    if (batch && count <= rowsMax && count * (length - 1) <= positionsMax && total <= selectedMax) {
      batch.rows.push(row);
      batch.selected = total;
    } else batches.push({ rows: [row], selected });
  }
  return batches.map((batch) => packMicroBatch(samples, batch.rows));
}

function countLoss(lossMask: readonly number[]): number {
  let count = 0;
  for (const mask of lossMask) if (mask !== 0) count++;
  return count;
}

/** The positions with loss from `first` to before `end`, of the same rows: what a part of the loss is computed from. */
export function slicePositions(batch: MicroBatch, first: number, end: number): MicroBatch {
  return {
    ...batch,
    selected: batch.selected.subarray(first, end),
    targets: batch.targets.subarray(first, end),
    sourceRow: batch.sourceRow.subarray(first, end),
    sourcePosition: batch.sourcePosition.subarray(first, end),
  };
}

export function maskTotal(samples: readonly MaskedSample[]): number {
  let total = 0;
  for (const { lossMask } of samples) for (const mask of lossMask) total += mask;
  return total;
}

/** A per-token quantity of the samples at the positions that carry loss. */
export function gather(batch: MicroBatch, perRow: (row: number) => ArrayLike<number>): Float32Array {
  const { sourceRow, sourcePosition } = batch;
  const values = new Float32Array(sourceRow.length);
  let row = -1;
  let source: ArrayLike<number> = [];
  for (let i = 0; i < values.length; i++) {
    if (sourceRow[i] !== row) {
      row = sourceRow[i]!;
      source = perRow(row);
    }
    values[i] = source[sourcePosition[i]!]!;
  }
  return values;
}

/** The other way: what was computed of the positions that carry loss. */
export function scatter(batch: MicroBatch, values: Float32Array, results: readonly Float32Array[]): void {
  const { sourceRow, sourcePosition } = batch;
  for (let i = 0; i < values.length; i++) results[sourceRow[i]!]![sourcePosition[i]!] = values[i]!;
}

/** Throws for rows no graph can compute: these come from outside the engine. */
export function requireTrainable(samples: readonly MaskedSample[], config: ModelConfig): void {
  if (samples.length > trainRowsMax) throw badBatch(`at most ${trainRowsMax} rows`, `${samples.length}`);
  samples.forEach((sample, row) => requireRow(sample, row, config));
}

function requireRow({ tokenIds, lossMask }: MaskedSample, row: number, config: ModelConfig): void {
  const where = `row ${row}`;
  if (lossMask.length !== tokenIds.length) {
    throw badBatch(`as many mask values as tokens in ${where}`, `${lossMask.length} for ${tokenIds.length}`);
  }
  if (tokenIds.length - 1 > config.positionsMax) {
    throw badBatch(`at most ${config.positionsMax + 1} tokens in ${where}`, `${tokenIds.length}`);
  }
  if ((lossMask[0] ?? 0) !== 0) throw badBatch(`a mask of 0 at position 0 of ${where}`, `${lossMask[0]}`);
  const foreign = tokenIds.find((id) => !Number.isInteger(id) || id < 0 || id >= config.vocabularySize);
  if (foreign !== undefined) throw badBatch(`token ids below ${config.vocabularySize} in ${where}`, `${foreign}`);
}

/** Throws unless `values` is aligned with the tokens of its row. */
export function requireAligned(values: ArrayLike<number> | undefined, sample: MaskedSample, name: string): void {
  if (values?.length === sample.tokenIds.length) return;
  throw badBatch(`${sample.tokenIds.length} ${name}, one per token`, `${values?.length ?? 'none'}`);
}

function badBatch(expected: string, received: string): RatchetError {
  return new RatchetError('Unsupported', `The training batch is malformed: expected ${expected}, got ${received}.`);
}

function packMicroBatch(samples: readonly MaskedSample[], rows: readonly number[]): MicroBatch {
  const width = Math.max(...rows.map((row) => samples[row]!.tokenIds.length - 1));
  const tokens = new Int32Array(rows.length * width);
  const selected: number[] = [];
  const targets: number[] = [];
  const sourceRow: number[] = [];
  const sourcePosition: number[] = [];
  rows.forEach((row, b) => {
    const { tokenIds, lossMask } = samples[row]!;
    for (let t = 0; t + 1 < tokenIds.length; t++) {
      tokens[b * width + t] = tokenIds[t]!;
      if (lossMask[t + 1] === 0) continue;
      selected.push(b * width + t);
      targets.push(tokenIds[t + 1]!);
      sourceRow.push(row);
      sourcePosition.push(t + 1);
    }
  });
  return {
    rows,
    width,
    tokens,
    selected: BigInt64Array.from(selected, BigInt),
    targets: BigInt64Array.from(targets, BigInt),
    sourceRow: Int32Array.from(sourceRow),
    sourcePosition: Int32Array.from(sourcePosition),
  };
}
