import { log } from '@temporalio/workflow';
import { type RunChange, whoAsked } from '../../core/rl/changes.ts';
import { poolChangesKept, poolStoresMax } from '../../core/limits.ts';
import { rootCause } from '../beside/root-cause.ts';
import { records } from '../options.ts';
import { AskedChanges } from './asked-changes.ts';

/** Carried by continue-as-new. */
export interface CarriedPoolRecord {
  readonly stores: readonly string[];
  /** The newest changes, oldest first. */
  readonly changes: readonly RunChange[];
  /** A write was under way: these stores may lack some. */
  readonly isUnwritten: boolean;
}

/**
 * Who changed a pool. A pool has no store of its own: its changes are kept in the stores of the runs that take turns in
 * it, where they outlive its workflow. Until one is known the workflow has them.
 */
export class PoolRecord {
  readonly #pool: string;
  #stores: readonly string[];
  #changes: readonly RunChange[];
  #writing: Promise<void> = Promise.resolve();
  #writes = 0;
  readonly asked: AskedChanges;

  constructor(pool: string, carried: CarriedPoolRecord | undefined) {
    this.#pool = pool;
    this.#stores = carried?.stores ?? [];
    this.#changes = carried?.changes ?? [];
    this.asked = new AskedChanges({
      record: async (change) => {
        const named = await records.nameChange.executeWithOptions({ summary: change.what }, [change]);
        this.#changes = [...this.#changes, named].slice(-poolChangesKept);
        this.#write(this.#stores);
        return whoAsked(named);
      },
      emit: (kind, text) => (kind === 'warning' ? log.warn(text) : undefined),
    });
    if (carried?.isUnwritten) this.#write(this.#stores);
  }

  /** The newest changes, oldest first: also those that no store has yet. */
  get changes(): readonly RunChange[] {
    return this.#changes;
  }

  /** A run tells where it is stored. */
  hears(store: string | undefined): void {
    if (store === undefined || this.#stores.includes(store) || this.#stores.length === poolStoresMax) return;
    this.#stores = [...this.#stores, store];
    if (this.#changes.length > 0) this.#write([store]);
  }

  carry(): CarriedPoolRecord {
    return { stores: this.#stores, changes: this.#changes, isUnwritten: this.#writes > 0 };
  }

  /** One write after the other, beside the pool's decisions. A store that cannot be written gets these changes with the next one. */
  #write(stores: readonly string[]): void {
    if (stores.length === 0) return;
    this.#writes += 1;
    this.#writing = this.#writing.then(() => this.#writeTo(stores)).finally(() => (this.#writes -= 1));
  }

  async #writeTo(stores: readonly string[]): Promise<void> {
    const [pool, changes] = [this.#pool, this.#changes];
    try {
      for (const { store, why } of await records.keepPoolChanges({ pool, stores, changes }))
        log.warn(`the changes of the pool ${pool} could not be written to ${store}: ${why}`);
    } catch (error) {
      log.warn(`the changes of the pool ${pool} could not be written: ${rootCause(error).message}`);
    }
  }
}
