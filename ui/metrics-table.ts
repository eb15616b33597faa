import { isMetricsRow } from '../runs/metrics/metrics.ts';
import type { MetricsRow } from '../core/rl/metric-rows.ts';
import { layout } from '../runs/layout.ts';
import type { Store } from '../store/index.ts';
import type { SeriesPart } from './answers.ts';

const newline = 0x0a;

interface Place {
  readonly lineage: string;
  readonly step: number;
}

/**
 * Numbers of a run as columns. Each refresh reads only what is new in `metrics.jsonl`, and keeps nothing of the file's
 * text. A step's training and its evaluations are one row.
 */
export class MetricsTable {
  readonly #store: Store;
  #reading: Promise<void> | null = null;
  #offset = 0;
  #rest = new Uint8Array();
  #places: Place[] = [];
  #rows = new Map<string, number>();
  /** Rows of each lineage, ascending by step. */
  #byLineage = new Map<string, number[]>();
  #times: number[] = [];
  #columns = new Map<string, Float64Array>();
  #names: readonly string[] = [];
  /** Names of the row read last, in order: the next row mostly has the same. */
  #lastSeen: { readonly name: string; column: Float64Array }[] = [];

  constructor(store: Store) {
    this.#store = store;
  }

  /** Number of rows; grows, unless the file was rewritten. */
  get rows(): number {
    return this.#places.length;
  }

  /** Bytes read so far: a change means news. */
  get offset(): number {
    return this.#offset;
  }

  /** Ascending; the same list object until it changes. */
  get names(): readonly string[] {
    if (this.#names.length !== this.#columns.size) this.#names = [...this.#columns.keys()].sort();
    return this.#names;
  }

  /** Callers that ask meanwhile share the same read. */
  refresh(): Promise<void> {
    this.#reading ??= this.#read().finally(() => (this.#reading = null));
    return this.#reading;
  }

  async #read(): Promise<void> {
    for (;;) {
      const piece = await this.#store.readFrom(layout.metrics(), this.#offset);
      if (piece === null) {
        if (this.#offset > 0) this.#forget(); // the file was rewritten, and is shorter
        else return;
        continue;
      }
      if (piece.byteLength === 0) return;
      this.#offset += piece.byteLength;
      this.#add(piece);
    }
  }

  /** The chosen rows, by ascending step; null for missing values. */
  part(lineage: string, chosen: readonly number[], names: readonly string[], perPoint = 1): SeriesPart {
    const buckets = this.points(chosen, perPoint);
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

  /** Rows of each point. Step 0 is a point of its own: averaged with later steps it would hide where a run began. */
  points(chosen: readonly number[], perPoint: number): number[][] {
    const alone = chosen.length > 0 && this.stepOf(chosen[0]!) === 0 ? 1 : 0;
    const rest = chosen.slice(alone);
    return [
      ...(alone === 0 ? [] : [[chosen[0]!]]),
      ...Array.from({ length: Math.ceil(rest.length / perPoint) }, (_, i) =>
        rest.slice(i * perPoint, (i + 1) * perPoint),
      ),
    ];
  }

  /** Rows of a lineage, ascending by step, from one step to another. */
  rowsOf(lineage: string, from = 0, upTo = Infinity): readonly number[] {
    const rows = this.#byLineage.get(lineage) ?? [];
    const begin = this.#firstFrom(rows, from);
    return rows.slice(begin, upTo === Infinity ? rows.length : this.#firstFrom(rows, upTo + 1));
  }

  value(row: number, name: string): number | null {
    const value = this.#columns.get(name)?.[row];
    return value === undefined || Number.isNaN(value) ? null : value;
  }

  /** Values of these metrics, without those that the row lacks. */
  valuesOf(row: number, names: readonly string[]): Record<string, number> {
    const values: Record<string, number> = {};
    for (const name of names) {
      const value = this.value(row, name);
      if (value !== null) values[name] = value;
    }
    return values;
  }

  /** Over all rows of all lineages. */
  sumOf(name: string): number {
    let sum = 0;
    for (let row = 0; row < this.rows; row++) sum += this.value(row, name) ?? 0;
    return sum;
  }

  /** Running sums of these metrics over all rows, in the order they were written, read at each chosen row. */
  sumsUpTo(names: readonly string[], chosen: readonly number[]): number[] {
    const sums = new Float64Array(this.rows);
    for (const name of names) {
      const column = this.#columns.get(name)!;
      for (let row = 0; row < sums.length; row++) {
        const value = column[row];
        if (value !== undefined && !Number.isNaN(value)) sums[row]! += value;
      }
    }
    for (let row = 1; row < sums.length; row++) sums[row]! += sums[row - 1]!;
    return chosen.map((row) => sums[row]!);
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

  #take(row: MetricsRow): void {
    const at = this.#place(row.lineage, row.step);
    const time = typeof row['time'] === 'string' ? Date.parse(row['time']) : Number.NaN;
    if (Number.isNaN(this.#times[at]!)) this.#times[at] = time;
    let i = 0;
    for (const name in row) {
      const value = row[name];
      if (typeof value !== 'number' || name === 'step') continue;
      const lastSeen = this.#lastSeen[i];
      const column = lastSeen?.name === name && at < lastSeen.column.length ? lastSeen.column : this.#column(name, at);
      if (column !== lastSeen?.column) this.#lastSeen[i] = { name, column };
      column[at] = value;
      i += 1;
    }
  }

  /** The row of a step, added if missing. */
  #place(lineage: string, step: number): number {
    const key = `${lineage}/${step}`;
    const known = this.#rows.get(key);
    if (known !== undefined) return known;
    const row = this.#places.push({ lineage, step }) - 1;
    this.#rows.set(key, row);
    this.#times.push(Number.NaN);
    const rows = this.#byLineage.get(lineage) ?? [];
    this.#byLineage.set(lineage, rows);
    rows.splice(this.#firstFrom(rows, step), 0, row);
    return row;
  }

  /** The metric's column, grown so that it can hold that row. */
  #column(name: string, row: number): Float64Array {
    let column = this.#columns.get(name);
    if (!column || row >= column.length) {
      const longer = new Float64Array(Math.max(64, 2 * row)).fill(Number.NaN);
      if (column) longer.set(column);
      column = longer;
      this.#columns.set(name, column);
      this.#lastSeen = []; // the shorter one may be among them
    }
    return column;
  }

  /** Index of the first of the ascending rows at or after a step; mostly near their end. */
  #firstFrom(rows: readonly number[], step: number): number {
    if (rows.length === 0 || this.#places[rows.at(-1)!]!.step < step) return rows.length;
    let [low, high] = [0, rows.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#places[rows[middle]!]!.step < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #forget(): void {
    [this.#offset, this.#rest, this.#places, this.#times] = [0, new Uint8Array(), [], []];
    this.#rows = new Map();
    this.#byLineage = new Map();
    this.#columns = new Map();
    this.#lastSeen = [];
  }
}

function rowIn(line: string): MetricsRow | null {
  try {
    const row: unknown = line === '' ? null : JSON.parse(line);
    return isMetricsRow(row) ? row : null;
  } catch {
    return null; // partial line of a killed writer
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
