import { type BudgetState, newBudget } from '../../core/rl/budget-ledger.ts';
import { failpoint } from '../../store/failpoints.ts';
import type { Store } from '../../store/index.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import { layout } from '../layout.ts';

/**
 * A budget's states in the store, an object each, numbered without a gap: of several writers of the next one, the first
 * wins and the others go on from its state. Nothing is ever removed, or a writer that was away could write a number
 * again.
 */
export class BudgetLedger {
  readonly #store: Store;
  readonly #prefix: string;
  /** The newest state that this process has seen. */
  #known: BudgetState | null = null;

  /** `prefix`: of an evaluation's or a search's folder in the store; '' for a run. */
  constructor(store: Store, prefix: string) {
    this.#store = store;
    this.#prefix = prefix;
  }

  /** The newest state; null before anybody used anything. */
  async newest(): Promise<BudgetState | null> {
    for (let step = 1; ;) {
      const { entry } = this.#known ?? { entry: 0 };
      const found = await this.#read(entry + step);
      if (found !== null) {
        this.#learn(found);
        step *= 2;
      } else if (step === 1) return this.#known;
      else step = Math.floor(step / 2);
    }
  }

  /**
   * Durable when it returns. `next` makes the state after the given one, possibly several times; null leaves it as it
   * is.
   */
  async change(next: (state: BudgetState) => BudgetState | null): Promise<BudgetState> {
    for (;;) {
      const before = this.#known ?? (await this.newest()) ?? newBudget(new Date().toISOString());
      const after = next(before);
      if (after === null) return before;
      const key = layout.budgetEntry(this.#prefix, after.entry);
      const encoded = Buffer.from(encodeStored(key, after));
      await failpoint('budget.reserving');
      const { bytes } = await this.#store.putIfAbsent(key, encoded);
      await failpoint('budget.reserved');
      // A repeated request may find what its first attempt wrote: no two workers write the same.
      const isOurs = encoded.equals(bytes);
      this.#learn(isOurs ? after : decodeStored<BudgetState>(bytes, key));
      if (isOurs) return after;
      await this.newest();
    }
  }

  #learn(state: BudgetState): void {
    if (this.#known === null || state.entry > this.#known.entry) this.#known = state;
  }

  async #read(entry: number): Promise<BudgetState | null> {
    const key = layout.budgetEntry(this.#prefix, entry);
    const bytes = await this.#store.read(key);
    return bytes === null ? null : decodeStored<BudgetState>(bytes, key);
  }
}
