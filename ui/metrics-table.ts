import { isMetricsRow, type MetricsRow } from '../runs/metrics.ts';
import { layout } from '../runs/layout.ts';
import type { Store } from '../backends/store/index.ts';
import type { SeriesPart } from './answers.ts';

const newline = 0x0a;

interface Place {
  readonly lineage: string;
  readonly step: number;
}

/**
 * The numbers of a run as columns. What is new in `metrics.jsonl` is read when it is looked at again: of the file nothing is held.
 * A step's training and its evaluations are one row.
 */
export class MetricsTable {
  readonly #store: Store;
  #reading: Promise<void> | null = null;
  #offset = 0;
  #rest = new Uint8Array();
  #places: Place[] = [];
  #rows = new Map<string, number>();
  #times: number[] = [];
  #columns = new Map<string, Float64Array>();

  constructor(store: Store) {
    this.#store = store;
  }

  /** How many rows there are; grows, unless the file was made anew. */
  get rows(): number {
    return this.#places.length;
  }

  /** Bytes that were read: another number means that something is new. */
  get offset(): number {
    return this.#offset;
  }

  get names(): string[] {
    return [...this.#columns.keys()].sort();
  }

  /** Who asks meanwhile waits for the same reading. */
  refresh(): Promise<void> {
    this.#reading ??= this.#read().finally(() => (this.#reading = null));
    return this.#reading;
  }

  async #read(): Promise<void> {
    for (;;) {
      const piece = await this.#store.readFrom(layout.metrics(), this.#offset);
      if (piece === null) {
        if (this.#offset > 0) this.#forget(); // made anew, and shorter
        else return;
        continue;
      }
      if (piece.byteLength === 0) return;
      this.#offset += piece.byteLength;
      this.#add(piece);
    }
  }

  /** Rows that are chosen, in ascending steps; null where there is no value. */
  part(lineage: string, chosen: readonly number[], names: readonly string[], perPoint = 1): SeriesPart {
    const buckets = Array.from({ length: Math.ceil(chosen.length / perPoint) }, (_, i) =>
      chosen.slice(i * perPoint, (i + 1) * perPoint),
    );
    const last = buckets.map((bucket) => bucket.at(-1)!);
    return {
      lineage,
      step: last.map((row) => this.#places[row]!.step),
      time: last.map((row) => this.#times[row]!),
      values: Object.fromEntries(
        names.map((name) => {
          const column = this.#columns.get(name);
          return [name, buckets.map((bucket) => (column ? meanOf(column, bucket) : null))];
        }),
      ),
    };
  }

  /** Rows of a lineage, ascending by step, from one step to another. */
  rowsOf(lineage: string, from = 0, upTo = Infinity): number[] {
    const found: number[] = [];
    for (const [row, place] of this.#places.entries())
      if (place.lineage === lineage && place.step >= from && place.step <= upTo) found.push(row);
    return found.sort((a, b) => this.#places[a]!.step - this.#places[b]!.step);
  }

  value(row: number, name: string): number | null {
    const value = this.#columns.get(name)?.[row];
    return value === undefined || Number.isNaN(value) ? null : value;
  }

  stepOf(row: number): number {
    return this.#places[row]!.step;
  }

  timeOf(row: number): number {
    return this.#times[row]!;
  }

  #add(piece: Uint8Array): void {
    const bytes = Buffer.concat([this.#rest, piece]);
    const end = bytes.lastIndexOf(newline) + 1;
    this.#rest = bytes.subarray(end);
    for (const line of bytes.toString('utf8', 0, end).split('\n')) {
      const row = rowIn(line);
      if (row) this.#take(row);
    }
  }

  #take({ lineage, step, time, ...values }: MetricsRow): void {
    const key = `${lineage}/${step}`;
    let row = this.#rows.get(key);
    if (row === undefined) {
      row = this.#places.push({ lineage, step }) - 1;
      this.#rows.set(key, row);
      this.#times.push(Number.NaN);
    }
    const at = typeof time === 'string' ? Date.parse(time) : Number.NaN;
    if (Number.isNaN(this.#times[row]!)) this.#times[row] = at;
    for (const [name, value] of Object.entries(values)) if (typeof value === 'number') this.#set(name, row, value);
  }

  #set(name: string, row: number, value: number): void {
    let column = this.#columns.get(name);
    if (!column || row >= column.length) {
      const longer = new Float64Array(Math.max(64, 2 * row)).fill(Number.NaN);
      if (column) longer.set(column);
      column = longer;
      this.#columns.set(name, column);
    }
    column[row] = value;
  }

  #forget(): void {
    [this.#offset, this.#rest, this.#places, this.#times] = [0, new Uint8Array(), [], []];
    this.#rows = new Map();
    this.#columns = new Map();
  }
}

function rowIn(line: string): MetricsRow | null {
  try {
    const row: unknown = line === '' ? null : JSON.parse(line);
    return isMetricsRow(row) ? row : null;
  } catch {
    return null; // what a killed writer left of a line
  }
}

const digits = 6;

function meanOf(column: Float64Array, rows: readonly number[]): number | null {
  let [sum, count] = [0, 0];
  for (const row of rows) {
    const value = column[row];
    if (value === undefined || Number.isNaN(value)) continue;
    sum += value;
    count += 1;
  }
  return count === 0 ? null : Number((sum / count).toPrecision(digits));
}
