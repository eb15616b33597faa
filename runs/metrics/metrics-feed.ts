import { jsonOrNull } from '../../core/json-or-null.ts';
import { layout } from '../layout.ts';
import type { Store } from '../../store/types.ts';
import { isMetricsRow, rowKey } from './metrics.ts';
import type { MetricsRow, NumberedRow } from '../../core/rl/metric-rows.ts';

/**
 * Numbered rows of a run's `metrics.jsonl`. Numbers are stored before a row is sent, so that they stay when the file is
 * rebuilt in another order. One reader of a run at a time.
 */
export class MetricsFeed {
  readonly #store: Store;
  /** Row keys by number; null before they are read. */
  #order: string[] | null = null;
  readonly #numbers = new Map<string, number>();
  /** Cached rows; those that all sinks have are dropped. */
  readonly #held = new Map<number, MetricsRow>();
  #offset = 0;
  #half = Buffer.alloc(0);
  #turn: Promise<unknown> = Promise.resolve();

  constructor(store: Store) {
    this.#store = store;
  }

  /** Number of numbered rows. */
  get length(): number {
    return this.#order?.length ?? 0;
  }

  /** Returns new rows. */
  pull(): Promise<readonly NumberedRow[]> {
    return this.#inTurn(() => this.#pull());
  }

  async #pull(): Promise<readonly NumberedRow[]> {
    await this.#readOrder();
    const bytes = await this.#store.readFrom(layout.metrics(), this.#offset);
    if (bytes === null) {
      this.#rewind(); // removed or rewritten: read from its start next time
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

  /** At most `max` rows from a number on. Dropped rows are read again. */
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

  /** Drops rows before this number from memory; they are read again only after a loss. */
  letGo(number: number): void {
    for (const held of this.#held.keys()) {
      if (held >= number) break;
      this.#held.delete(held);
    }
  }

  /** Serializes reads: sinks ask for rows while new ones are looked for. */
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => undefined); // the caller has the failure
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
    // Terminates the partial line of a killed writer: its rows were given to no sink.
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
        return isMetricsRow(row) ? [row] : []; // a terminated partial line is not a row
      });
  }
}
