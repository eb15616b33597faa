import type { RunSpec } from '../../config/run-spec.ts';
import type { EvaluationInput, EvaluationPlace } from '../../core/eval/evaluation.ts';
import { type BudgetPrices, noPrices, type TokenPrices } from '../../core/rl/budget.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { type BudgetLimits, budgetKeys, type BudgetOwner } from '../../core/settings/budgets.ts';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { specOf, storeOf } from '../../runs/run-access.ts';
import { sandboxesOfWorkers } from '../sandboxes/sandboxes-of-workers.ts';
import type { AroundRollouts } from './rollout-budget.ts';
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
function budgetOfPart(
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
  const budget =
    known.get(key) ?? new SharedBudget({ ledger, limits, sandboxes: sandboxesOfWorkers(place.store), ...options });
  budget.limits = limits;
  known.delete(key);
  known.set(key, budget);
  for (const [oldest, one] of known) {
    if (known.size <= remembered) break;
    if (!one.isUsed) known.delete(oldest);
  }
  return budget;
}

/** Budgets around the rollouts of an evaluation or a search, and how they are left. */
export interface EnteredBudgets extends AroundRollouts {
  /** Gives back what is not used. */
  leave(): Promise<void>;
}

/** The budget of an evaluation or a search, and that of its run where it samples a version of one. */
export async function enterBudgets(
  of: 'evaluation' | 'search',
  place: EvaluationPlace,
  { model, budget, prices, others }: PartWithBudget,
): Promise<EnteredBudgets> {
  const spec = model.kind === 'version' ? await specOf(model.run) : null;
  const own = budgetOfPart(of, place, budget);
  const around = model.kind === 'version' && spec ? budgetOfRun(model.run, spec) : null;
  const shared = [own, around].filter((one) => one !== null);
  const leaving = await Promise.all(shared.map((one) => one.enter()));
  return {
    shared,
    prices: spec ? pricesOfRun(spec) : pricesOfEndpoint(prices, others),
    leave: async () => void (await Promise.all(leaving.map((leave) => leave()))),
  };
}

type Prices = EvaluationInput['prices'];

interface PartWithBudget extends Pick<EvaluationInput, 'model' | 'budget' | 'prices'> {
  /** Of other models that it asks, by their names. */
  readonly others?: Readonly<Record<string, Prices>>;
}

export function pricesOfEndpoint(prices: Prices, others: PartWithBudget['others'] = {}): BudgetPrices {
  const known = Object.entries(others).flatMap(([name, of]) => (of ? [[name, tokenPrices(of)] as const] : []));
  return { policy: prices ? tokenPrices(prices) : null, models: Object.fromEntries(known) };
}

function tokenPrices({ input, output }: NonNullable<Prices>): TokenPrices {
  return { prompt: input, completion: output };
}

/** Prices of a run's models; the policy's are known only if both are. */
export function pricesOfRun({ cost, gepa }: Pick<RunSpec, 'cost' | 'gepa'>): BudgetPrices {
  if (cost === undefined) return noPrices;
  const { prompt, completion, reflectionPrompt, reflectionCompletion, models = [] } = cost;
  const isReflectionPriced = gepa && reflectionPrompt !== null && reflectionCompletion !== null;
  const reflection = isReflectionPriced
    ? { [gepa.reflectionModel]: { prompt: reflectionPrompt, completion: reflectionCompletion } }
    : {};
  return {
    policy: prompt === null || completion === null ? null : { prompt, completion },
    models: {
      ...reflection,
      ...Object.fromEntries(models.map(({ name, ...prices }): [string, TokenPrices] => [name, prices])),
    },
  };
}
