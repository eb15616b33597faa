import { RatchetError } from '../../core/errors.ts';
import {
  add,
  amountsOf,
  amountText,
  beyond,
  type BudgetPrices,
  type Counts,
  countsOfUse,
  fitting,
  limitCounts,
  mapUnits,
  minus,
  noCounts,
} from '../../core/rl/budget.ts';
import type { BudgetInPlay } from '../../core/rl/rollout/in-play.ts';
import {
  type Amounts,
  type Budget,
  type BudgetLimits,
  type BudgetUnit,
  budgetUnits,
  type OverBudget,
  type Reservation,
  unlimited,
  type Use,
} from '../../core/settings/budgets.ts';
import type { SharedBudget } from './shared-budget.ts';

/** What the budgets around rollouts are, for those that begin some. */
export interface AroundRollouts {
  /** Of the evaluation or search, and of its run; may be none. */
  readonly shared: readonly SharedBudget[];
  readonly prices: BudgetPrices;
}

/**
 * The budget of one rollout within those around it. It counts what the rollout uses in this process, and the turns that
 * it takes over from an earlier attempt; calls that a dead process lost are counted by the budgets around it alone, so
 * that a rollout goes as far as it would have gone undisturbed.
 */
export class RolloutBudget implements Budget {
  readonly #limits: BudgetLimits;
  readonly #shared: readonly SharedBudget[];
  readonly #prices: BudgetPrices;
  readonly #leasesAt: string | undefined;
  readonly #startedAt = performance.now();
  #used: Counts = noCounts;
  /** Why the rollout was not given what it asked for. */
  reached: OverBudget | null = null;

  /** `leasesAt`: the place of runs beside whose runs the leases of its sandboxes are. */
  constructor(limits: BudgetLimits = unlimited, { shared, prices }: AroundRollouts, leasesAt?: string) {
    this.#limits = limits;
    this.#leasesAt = leasesAt;
    this.#shared = shared;
    this.#prices = prices;
  }

  async reserve(asked: Use, signal?: AbortSignal): Promise<Reservation | OverBudget> {
    const left = this.#left();
    const fits = fitting(asked, left, this.#prices, this.#isMoneyLimited());
    if (fits === null) return (this.reached = this.#over(asked, left));
    const { use, cut } = fits;
    const counts = this.#countsOf(use);
    this.#used = add(this.#used, counts);
    const taken: { settle(used: Counts): void }[] = [];
    const settle = (used: Counts): void => {
      this.#used = add(minus(this.#used, counts), used);
      for (const one of taken) one.settle(used);
    };
    try {
      for (const shared of this.#shared) {
        const answer = await shared.reserve(counts, signal, this.#leasesAt);
        if ('over' in answer) {
          settle(noCounts);
          return (this.reached = answer);
        }
        taken.push(answer);
      }
    } catch (error) {
      settle(noCounts);
      throw error;
    }
    let isSettled = false;
    return {
      use,
      ...(cut && { cut }),
      settle: (used) => {
        if (!isSettled) settle(used === undefined ? noCounts : this.#countsOf(used));
        isSettled = true;
      },
    };
  }

  adopt(use: Use): void {
    this.#used = add(this.#used, this.#countsOf(use));
  }

  used(): Amounts {
    return amountsOf(this.#used);
  }

  /** What it counts, and the limits of the rollout itself. */
  inPlay(): BudgetInPlay {
    const limited = Object.entries(this.#limits).filter((one): one is [string, number] => one[1] !== null);
    return { used: this.used(), limits: Object.fromEntries(limited) };
  }

  left(): Readonly<Partial<Record<BudgetUnit | 'wallS', number>>> {
    const lefts = [this.#left(), ...this.#shared.map((one) => one.left)];
    const least = mapUnits((unit) => Math.max(0, Math.min(...lefts.map((left) => left[unit]))));
    const { wallS } = this.#limits;
    const own = wallS === null ? Infinity : wallS - (performance.now() - this.#startedAt) / 1000;
    const wall = Math.max(0, Math.min(own, ...this.#shared.map((one) => one.wallLeftS)));
    const limited = budgetUnits.filter((unit) => least[unit] !== Infinity);
    return {
      ...Object.fromEntries(limited.map((unit) => [unit, amountsOf(least)[unit]])),
      ...(wall === Infinity ? {} : { wallS: wall }),
    };
  }

  #left(): Counts {
    return minus(limitCounts(this.#limits), this.#used);
  }

  #isMoneyLimited(): boolean {
    return this.#limits.money !== null || this.#shared.some((one) => one.isMoneyLimited);
  }

  #countsOf(use: Use): Counts {
    return countsOfUse(use, this.#prices, this.#isMoneyLimited());
  }

  #over(asked: Use, left: Counts): OverBudget {
    const least = { ...asked, ...(asked.completionTokens ? { completionTokens: 1 } : {}) };
    const over = beyond(this.#countsOf(least), left) ?? 'tokens';
    const say = (counts: Counts): string => amountText(over, counts[over]);
    const text = `The rollout's budget of ${say(limitCounts(this.#limits))} is used up: ${say(this.#used)} are used.`;
    return { over, of: 'rollout', text };
  }
}

/** Whether a budget around rollouts allows no further calls. */
export function isBudgetReached(error: unknown): error is RatchetError & { readonly code: 'BudgetReached' } {
  return error instanceof RatchetError && error.code === 'BudgetReached';
}
