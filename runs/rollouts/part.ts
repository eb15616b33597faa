import PQueue from 'p-queue';
import type { Store } from '../../store/index.ts';
import { decodeStoredRows, encodeStoredRows } from '../forms/stored-forms.ts';

const readsAtOnce = 32;

/** Rows of objects by the number of the object. */
type Held<Row> = Map<number, readonly Row[]>;

/** Rows in objects `PREFIX1.jsonl`, `PREFIX2.jsonl`, … Several writers may add objects. */
export class Part<Row extends object> {
  readonly stored: readonly Row[];
  fresh: Row[] = [];
  readonly #store: Store;
  readonly #prefix: string;
  readonly #held: Held<Row> | null;
  /** Number of the newest object, stored or begun. */
  #newest: number;

  private constructor(store: Store, prefix: string, newest: number, stored: readonly Row[], held: Held<Row> | null) {
    this.#store = store;
    this.#prefix = prefix;
    this.#newest = newest;
    this.stored = stored;
    this.#held = held;
  }

  /** `held`: objects that this process has read or written; an object never changes. Missing = only `stored` keeps rows. */
  static async open<Row extends object>(
    store: Store,
    prefix: string,
    { keys, held }: { readonly keys?: readonly string[]; readonly held?: Held<Row> } = {},
  ): Promise<Part<Row>> {
    const numbers = numbersOf(keys ?? (await store.list(prefix)), prefix);
    const objects: Held<Row> = held ?? new Map<number, readonly Row[]>();
    const read = async (number: number): Promise<void> => {
      const key = `${prefix}${number}.jsonl`;
      const bytes = await store.read(key);
      if (bytes !== null) objects.set(number, decodeStoredRows<Row>(bytes, key));
    };
    const queue = new PQueue({ concurrency: readsAtOnce });
    await queue.addAll(numbers.filter((number) => !objects.has(number)).map((number) => () => read(number)));
    const stored = numbers.flatMap((number) => objects.get(number) ?? []);
    return new Part(store, prefix, numbers.at(-1) ?? 0, stored, held ?? null);
  }

  /** Stores rows as one object; returns its number. */
  async put(rows: readonly Row[]): Promise<number> {
    for (;;) {
      this.#newest += 1;
      const number = this.#newest;
      const key = `${this.#prefix}${number}.jsonl`;
      if ((await this.#store.putIfAbsent(key, encodeStoredRows(key, rows))).stored) {
        this.#held?.set(number, rows);
        return number;
      }
      // Others have added objects since this was opened, perhaps many.
      this.#newest = Math.max(this.#newest, ...numbersOf(await this.#store.list(this.#prefix), this.#prefix).slice(-1));
    }
  }

  /** Stores fresh rows and returns them. */
  async flush(): Promise<readonly Row[]> {
    const rows = [...this.fresh];
    if (rows.length === 0) return rows;
    await this.put(rows);
    const written = new Set(rows);
    this.fresh = this.fresh.filter((row) => !written.has(row));
    return rows;
  }
}

function numbersOf(keys: readonly string[], prefix: string): number[] {
  return keys
    .filter((key) => key.startsWith(prefix))
    .map((key) => Number.parseInt(key.slice(prefix.length), 10))
    .sort((a, b) => a - b);
}
