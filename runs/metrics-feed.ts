import { jsonOrNull } from '../core/json-or-null.ts';
import { layout } from './layout.ts';
import type { Store } from '../backends/store/types.ts';
import { isMetricsRow, type MetricsRow, rowKey } from './metrics.ts';

/** A row of metrics and its number: rows are handed on in this order, and a number means the same row for good. */
export interface NumberedRow {
  readonly number: number;
  readonly row: MetricsRow;
}

/**
 * The rows of a run's `metrics.jsonl`, numbered. The numbers are written down before a row is handed on, so that they stay
 * when the file is made again in another order. For one reader of a run at a time.
 */
export class MetricsFeed {
  readonly #store: Store;
  /** Keys by number. */
  #order: string[] | null = null;
  readonly #numbers = new Map<string, number>();
  /** Rows that are held; those that everybody has are let go. */
  readonly #held = new Map<number, MetricsRow>();
  #offset = 0;
  #half = Buffer.alloc(0);
  #turn: Promise<unknown> = Promise.resolve();

  constructor(store: Store) {
    this.#store = store;
  }

  /** Rows that have a number. */
  get length(): number {
    return this.#order?.length ?? 0;
  }

  /** Looks for new rows. */
  pull(): Promise<readonly NumberedRow[]> {
    return this.#inTurn(() => this.#pull());
  }

  async #pull(): Promise<readonly NumberedRow[]> {
    await this.#readOrder();
    const bytes = await this.#store.readFrom(layout.metrics(), this.#offset);
    if (bytes === null) {
      this.#rewind(); // gone or made again: what is in it now is looked at from its start
      return [];
    }
    this.#offset += bytes.byteLength;
    const rows = this.#wholeRows(bytes);
    const fresh = rows.filter((row, i) => {
      const key = rowKey(row);
      return !this.#numbers.has(key) && rows.findIndex((other) => rowKey(other) === key) === i;
    });
    if (fresh.length > 0) {
      const keys = fresh.map(rowKey);
      await this.#store.append(layout.metricsOrder(), keys.map((key) => `${JSON.stringify(key)}\n`).join(''));
      for (const key of keys) this.#number(key);
    }
    for (const row of rows) this.#held.set(this.#numbers.get(rowKey(row))!, row);
    return rows.map((row) => ({ number: this.#numbers.get(rowKey(row))!, row }));
  }

  /** The rows from a number on, at most so many. Rows that were let go are read again. */
  from(number: number, max: number): Promise<NumberedRow[]> {
    return this.#inTurn(() => this.#from(number, max));
  }

  async #from(number: number, max: number): Promise<NumberedRow[]> {
    if (number < this.length && !this.#held.has(number)) {
      this.#rewind();
      await this.#pull();
    }
    const found: NumberedRow[] = [];
    for (let at = number; at < this.length && found.length < max; at += 1) {
      const row = this.#held.get(at);
      if (row) found.push({ number: at, row }); // else it is in no file any more
    }
    return found;
  }

  /** Nobody will ask for rows before this number, unless something was lost. */
  letGo(number: number): void {
    for (const held of this.#held.keys()) {
      if (held >= number) break;
      this.#held.delete(held);
    }
  }

  /** Sinks ask for rows while others are looked for. */
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => undefined); // whoever asked has its failure
    return turn;
  }

  #rewind(): void {
    this.#offset = 0;
    this.#half = Buffer.alloc(0);
    this.#held.clear();
  }

  #number(key: string): void {
    this.#numbers.set(key, this.#order!.length);
    this.#order!.push(key);
  }

  async #readOrder(): Promise<void> {
    if (this.#order !== null) return;
    const bytes = await this.#store.read(layout.metricsOrder());
    const text = Buffer.from(bytes ?? []).toString('utf8');
    // What a killed writer left of a line is closed off: its rows were handed to nobody.
    if (text !== '' && !text.endsWith('\n')) await this.#store.append(layout.metricsOrder(), '\n');
    this.#order = [];
    for (const line of text.split('\n')) {
      const key = jsonOrNull(line);
      if (typeof key === 'string' && !this.#numbers.has(key)) this.#number(key);
    }
  }

  /** Half a row at the end waits for its rest. */
  #wholeRows(bytes: Uint8Array): MetricsRow[] {
    const all = Buffer.concat([this.#half, bytes]);
    const end = all.lastIndexOf(0x0a) + 1;
    this.#half = all.subarray(end);
    return all
      .subarray(0, end)
      .toString('utf8')
      .split('\n')
      .flatMap((line) => {
        const row = jsonOrNull(line);
        return isMetricsRow(row) ? [row] : []; // what was closed off is no row
      });
  }
}
