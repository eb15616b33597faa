import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import type { Store } from '../../backends/store/index.ts';
import { Part } from '../rollout-journal.ts';

/** What comes within so long is stored together. */
const gatherMs = 2;
const againMs = { first: 200, most: 5_000 };

/**
 * Rows in the store that are durable when `add` returns. While the store is away or full they are kept here, and stored as soon as it
 * takes them: what they cost is paid.
 */
export class StoredRows<Row> {
  /** Those that were there. */
  readonly before: readonly Row[];
  readonly #part: Part<Row>;
  readonly #signal: AbortSignal;
  #gathering: Promise<void> | null = null;
  #storing: Promise<void> = Promise.resolve();

  private constructor(part: Part<Row>, signal: AbortSignal) {
    this.before = part.stored;
    this.#part = part;
    this.#signal = signal;
  }

  static async open<Row>(store: Store, prefix: string, signal: AbortSignal): Promise<StoredRows<Row>> {
    return new StoredRows(await Part.open<Row>(store, `${prefix}part_`, await store.list(prefix)), signal);
  }

  add(row: Row): Promise<void> {
    this.#part.fresh.push(row);
    this.#gathering ??= this.#gather();
    return this.#gathering;
  }

  async #gather(): Promise<void> {
    await Promise.all([delay(gatherMs), this.#storing.catch(() => undefined)]);
    this.#gathering = null;
    this.#storing = whenStoreTakesIt(() => this.#part.flush(), this.#signal);
    await this.#storing;
  }
}

/** Asks again, longer and longer apart, while the store is away or full. */
export async function whenStoreTakesIt(write: () => Promise<unknown>, signal: AbortSignal): Promise<void> {
  for (let waitMs = againMs.first; ; waitMs = Math.min(waitMs * 2, againMs.most)) {
    try {
      await write();
      return;
    } catch (error) {
      const isWeather = error instanceof RatchetError && ['StoreFull', 'StoreUnavailable'].includes(error.code);
      if (!isWeather || signal.aborted) throw error;
      await delay(waitMs, undefined, { signal }).catch(() => undefined);
    }
  }
}
