import assert from 'node:assert/strict';
import { RatchetError } from '../../core/errors.ts';
import {
  isHeld,
  type MaskedSample,
  type RowFacts,
  type Rows,
  type RowSource,
  rowsOf,
  windowsOf,
} from '../../core/rl/learning/batch.ts';
import { trainRowsMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { joinRows, type Line, type Sharing, sharingOf } from './lines.ts';

/** Lines of similar length, padded to the longest; a line is a row, or several with one beginning. Vectors speak of the positions that carry loss, row by row. */
export interface MicroBatch<Row extends MaskedSample = MaskedSample> {
  /** Index of each row in the batch it was cut from. */
  readonly rows: readonly number[];
  /** Rows by their index in the batch. */
  readonly samples: ReadonlyMap<number, Row>;
  readonly lines: number;
  /** Tokens fed per line. */
  readonly width: number;
  /** [lines · width]. */
  readonly tokens: Int32Array;
  /** null if every line is a row. */
  readonly sharing: Sharing | null;
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
  /** Bound on the rows of a micro-batch. */
  readonly rowsMax?: number;
  /** Positions with loss of a micro-batch. A single larger row still is a micro-batch. */
  readonly selectedMax?: number;
  /** Tokens of a line that several rows make together. */
  readonly widthMax?: number;
  /** See `joinRows`; rows share no lines when it is missing. */
  readonly pairCost?: number | null;
}

export type Cut = readonly (readonly Line[])[];

/**
 * Cuts a batch into micro-batches by length, to reduce padding. The cut depends on the facts alone: the same batch
 * gives the same sums in the same order. Rows without loss are left out.
 */
export function cutMicroBatches(
  facts: readonly RowFacts[],
  positionsMax: number,
  { rowsMax = rowsTarget, selectedMax = Infinity, widthMax = positionsMax, pairCost = null }: MicroBatchLimits = {},
): Cut {
  const limits = { rowsMax, selectedMax, widthMax: Math.min(widthMax, positionsMax), pairCost };
  const lines = joinRows(facts, limits).toSorted((a, b) => a.width - b.width || a.rows[0]! - b.rows[0]!);
  const batches: { lines: Line[]; rows: number; selected: number }[] = [];
  for (const line of lines) {
    const batch = batches.at(-1);
    const rows = (batch?.rows ?? 0) + line.rows.length;
    const selected = (batch?.selected ?? 0) + line.selected;
    const positions = ((batch?.lines.length ?? 0) + 1) * line.width;
    if (batch && rows <= rowsMax && positions <= positionsMax && selected <= selectedMax) {
      batch.lines.push(line);
      Object.assign(batch, { rows, selected });
    } else batches.push({ lines: [line], rows: line.rows.length, selected: line.selected });
  }
  return batches.map((batch) => batch.lines);
}

/**
 * Cuts within windows of consecutive rows, for rows that are read from storage: the rows of a micro-batch are near one
 * another. Only valid when the order of sums does not matter.
 */
export function cutInWindows(facts: readonly RowFacts[], positionsMax: number, tokensOfWindow: number): Cut {
  const cut: (readonly Line[])[] = [];
  for (const places of windowsOf(facts, tokensOfWindow)) {
    const own = cutMicroBatches(
      places.map((place) => facts[place]!),
      positionsMax,
    );
    cut.push(...own.map((lines) => lines.map((line) => ({ ...line, rows: line.rows.map((row) => places[row]!) }))));
  }
  return cut;
}

/** One after the other, as they are computed: of a large batch no more is read. Throws for rows that no graph can compute. */
export async function* readMicroBatches<Row extends MaskedSample>(
  source: RowSource<Row>,
  cut: Cut,
  requireRow: (sample: Row, row: number) => void = () => undefined,
): AsyncGenerator<MicroBatch<Row>> {
  for (const lines of cut) {
    const rows = lines.flatMap((line) => line.rows);
    const read = await source.read(rows);
    const samples = new Map(rows.map((row, i) => [row, read[i]!]));
    for (const [row, sample] of samples) requireRow(sample, row);
    yield packMicroBatch(samples, lines);
  }
}

/** The positions with loss from `first` to before `end`, of the same rows: one part of the loss. */
export function slicePositions<Row extends MaskedSample>(
  batch: MicroBatch<Row>,
  first: number,
  end: number,
): MicroBatch<Row> {
  return {
    ...batch,
    selected: batch.selected.subarray(first, end),
    targets: batch.targets.subarray(first, end),
    sourceRow: batch.sourceRow.subarray(first, end),
    sourcePosition: batch.sourcePosition.subarray(first, end),
  };
}

export function maskTotal(rows: readonly RowFacts[]): number {
  return rows.reduce((total, { weight }) => total + weight, 0);
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

/** The inverse of `gather`: distributes results of the positions with loss. */
export function scatter(batch: MicroBatch, values: Float32Array, results: readonly Float32Array[]): void {
  const { sourceRow, sourcePosition } = batch;
  for (let i = 0; i < values.length; i++) results[sourceRow[i]!]![sourcePosition[i]!] = values[i]!;
}

/** Throws for a batch no graph can compute: it comes from outside the engine. Rows that are not in memory are looked at as they are read. */
export function requireTrainable(given: Rows<MaskedSample>, config: ModelConfig): void {
  const { rows } = rowsOf(given);
  if (rows.length > trainRowsMax) throw badBatch(`at most ${trainRowsMax} rows`, `${rows.length}`);
  const row = rows.findIndex(({ tokens }) => tokens - 1 > config.positionsMax);
  if (row >= 0) throw badBatch(`at most ${config.positionsMax + 1} tokens in row ${row}`, `${rows[row]!.tokens}`);
  if (isHeld(given)) for (const [place, sample] of given.entries()) requireRow(sample, place, config);
}

export function requireRow({ tokenIds, lossMask }: MaskedSample, row: number, config: ModelConfig): void {
  const where = `row ${row}`;
  if (lossMask.length !== tokenIds.length) {
    throw badBatch(`as many mask values as tokens in ${where}`, `${lossMask.length} for ${tokenIds.length}`);
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

function packMicroBatch<Row extends MaskedSample>(
  samples: ReadonlyMap<number, Row>,
  lines: readonly Line[],
): MicroBatch<Row> {
  const rows = lines.flatMap((line) => line.rows);
  const width = Math.max(...lines.map((line) => line.width));
  const tokens = new Int32Array(lines.length * width);
  const selected: number[] = [];
  const targets: number[] = [];
  const sourceRow: number[] = [];
  const sourcePosition: number[] = [];
  lines.forEach((line, l) => {
    let first = l * width + line.shared; // the slot of the row's first token that is its own
    for (const row of line.rows) {
      const { tokenIds, lossMask } = samples.get(row)!;
      const slotOf = (t: number): number => (t < line.shared ? l * width : first - line.shared) + t;
      const isFirst = row === line.rows[0];
      for (let t = 0; t + 1 < tokenIds.length; t++) {
        const isShared = t < line.shared;
        assert(!isShared || isFirst || tokens[slotOf(t)] === tokenIds[t], `row ${row} begins as its line does`);
        tokens[slotOf(t)] = tokenIds[t]!;
        if (lossMask[t + 1] === 0) continue;
        assert(!isShared, `what row ${row} shares predicts no token that counts`);
        selected.push(slotOf(t));
        targets.push(tokenIds[t + 1]!);
        sourceRow.push(row);
        sourcePosition.push(t + 1);
      }
      first = slotOf(tokenIds.length - 1);
    }
  });
  return {
    rows,
    samples,
    lines: lines.length,
    width,
    tokens,
    sharing: lines.some(({ shared }) => shared > 0) ? sharingOf(lines.map(lengthsIn(samples)), width) : null,
    selected: BigInt64Array.from(selected, BigInt),
    targets: BigInt64Array.from(targets, BigInt),
    sourceRow: Int32Array.from(sourceRow),
    sourcePosition: Int32Array.from(sourcePosition),
  };
}

function lengthsIn(samples: ReadonlyMap<number, MaskedSample>) {
  return ({ rows, shared }: Line): { shared: number; lengths: readonly number[] } => ({
    shared,
    lengths: rows.map((row) => samples.get(row)!.tokenIds.length - 1),
  });
}
