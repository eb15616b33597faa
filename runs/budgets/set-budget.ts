import { withLimits } from '../../core/rl/budget-ledger.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { BudgetLimits } from '../../core/settings/budgets.ts';
import { storeOf } from '../run-access.ts';
import { BudgetLedger } from './budget-ledger.ts';

/** Replaces limits of a run's budget, for all workers from their next look on. Idempotent: a repetition sets the same again. */
export async function setBudget({
  run,
  limits,
}: {
  readonly run: RunHandle;
  readonly limits: Partial<BudgetLimits>;
}): Promise<void> {
  await new BudgetLedger(storeOf(run), '').change((state) => withLimits(state, 'set', limits));
}
