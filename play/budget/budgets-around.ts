import type { CostSpec, RunSpec } from '../../config/run-spec.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import { type BudgetPrices, noPrices, type TokenPrices } from '../../core/rl/budget.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { type BudgetLimits, budgetKeys, type BudgetOwner } from '../../core/settings/budgets.ts';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { storeOf } from '../../runs/run-access.ts';
import { SharedBudget, type SharedBudgetOptions } from './shared-budget.ts';

/** This process's part of each budget that it uses, by the place of the ledger: all chunks of a run share one. */
const known = new Map<string, SharedBudget>();
const remembered = 64;

/** The run's budget; null if nothing is limited. */
export function budgetOfRun(
  run: Pick<RunHandle, 'name' | 'store'>,
  { budget, cost }: Pick<RunSpec, 'budget' | 'cost'>,
): SharedBudget | null {
  if (budget === undefined) return null;
  return shared({ store: run.store, name: run.name, prefix: '' }, budget, {
    of: 'run',
    advice: (unit) =>
      `Give it more: npx ratchet-rl set ${run.name} budget.${budgetKeys[unit]}=NEW; then: npx ratchet-rl resume ${run.name}`,
    ...(cost && { currency: cost.currency }),
  });
}

/** The budget of an evaluation or a search; null if nothing is limited. */
export function budgetOfPart(
  of: Exclude<BudgetOwner, 'run' | 'rollout'>,
  place: EvaluationPlace,
  limits: BudgetLimits | undefined,
): SharedBudget | null {
  if (limits === undefined) return null;
  const advice = (unit: keyof BudgetLimits): string =>
    `What is stored stays. Give it a larger ${budgetKeys[unit]} of its budget, and start it again: it goes on from there.`;
  return shared(place, limits, { of, advice });
}

function shared(
  place: EvaluationPlace,
  limits: BudgetLimits,
  options: Pick<SharedBudgetOptions, 'of' | 'advice' | 'currency'>,
): SharedBudget {
  const key = `${place.store} ${place.name} ${place.prefix}`;
  const ledger = new BudgetLedger(storeOf(place), place.prefix);
  const budget = known.get(key) ?? new SharedBudget({ ledger, limits, ...options });
  budget.limits = limits;
  known.delete(key);
  known.set(key, budget);
  for (const [oldest, one] of known) {
    if (known.size <= remembered) break;
    if (!one.isUsed) known.delete(oldest);
  }
  return budget;
}

/** Prices of a run's models; the policy's are known only if both are. */
export function pricesOfRun(cost: CostSpec | undefined): BudgetPrices {
  if (cost === undefined) return noPrices;
  const { prompt, completion, models = [] } = cost;
  return {
    policy: prompt === null || completion === null ? null : { prompt, completion },
    models: Object.fromEntries(models.map(({ name, ...prices }): [string, TokenPrices] => [name, prices])),
  };
}
