import type { RunSpec } from '../../config/run-spec.ts';
import { add, amountText, type Counts, limitCounts } from '../../core/rl/budget.ts';
import { limitsIn, newBudget } from '../../core/rl/budget-ledger.ts';
import { budgetUnits } from '../../core/settings/budgets.ts';
import { type RunPlace, storeOf } from '../run-access.ts';
import { BudgetLedger } from './budget-ledger.ts';

/** What is used of each limit of a run's budget, `1,200 of 5,000 tokens`; empty where nothing is limited. */
export async function budgetLines(
  place: RunPlace,
  { budget, cost }: Pick<RunSpec, 'budget' | 'cost'>,
): Promise<string[]> {
  if (budget === undefined) return [];
  const state = (await new BudgetLedger(storeOf(place), '').newest()) ?? newBudget(new Date().toISOString());
  const limits = limitsIn(state, budget);
  const used = add(state.used, state.held);
  const say = (counts: Counts, unit: keyof Counts): string => amountText(unit, counts[unit], cost?.currency);
  const lines = budgetUnits.flatMap((unit) =>
    limits[unit] === null ? [] : [`${say(used, unit)}, of ${say(limitCounts(limits), unit)}`],
  );
  return limits.wallS === null ? lines : [...lines, `${limits.wallS} seconds from ${state.begunAt} on`];
}
