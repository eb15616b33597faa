import { RatchetError } from '../errors.ts';
import { type Amounts, type BudgetLimits, type BudgetUnit, budgetUnits, type Use } from '../settings/budgets.ts';

/**
 * Amounts as whole numbers, so that sums are exact: tokens, billionths of the currency, milliseconds of sandboxes, tool
 * calls. Uses are rounded up and limits down.
 */
export type Counts = Readonly<Record<BudgetUnit, number>>;

export const noCounts: Counts = { tokens: 0, money: 0, sandboxS: 0, toolCalls: 0 };

const perUnit: Counts = { tokens: 1, money: 1e9, sandboxS: 1e3, toolCalls: 1 };
/** Products of decimal fractions are a little off: 0.1 × 1e9 must not become 100000001. */
const slack = 1e-3;

/** Prices of a million tokens. */
export interface TokenPrices {
  readonly prompt: number;
  readonly completion: number;
}

export interface BudgetPrices {
  /** null = the file has none. */
  readonly policy: TokenPrices | null;
  /** By the names of other models. */
  readonly models: Readonly<Record<string, TokenPrices>>;
}

export const noPrices: BudgetPrices = { policy: null, models: {} };

export function countsOf(amounts: Amounts): Counts {
  return mapUnits((unit) => Math.ceil((amounts[unit] ?? 0) * perUnit[unit] - slack));
}

export function amountsOf(counts: Counts): Required<Amounts> {
  return mapUnits((unit) => counts[unit] / perUnit[unit]);
}

/** Infinity for what is not limited. */
export function limitCounts(limits: BudgetLimits): Counts {
  return mapUnits((unit) => {
    const limit = limits[unit];
    return limit === null ? Infinity : Math.floor(limit * perUnit[unit] + slack);
  });
}

/**
 * Use in counts. Tokens cost what their model costs. Throws `ConfigInvalid` for a model without prices where money is
 * limited.
 */
export function countsOfUse(use: Use, prices: BudgetPrices, isMoneyLimited: boolean): Counts {
  const { promptTokens = 0, completionTokens = 0, model, money = 0, sandboxS = 0, toolCalls = 0 } = use;
  const tokens = promptTokens + completionTokens;
  const price = model === undefined ? prices.policy : prices.models[model];
  if (!price && isMoneyLimited && tokens > 0) throw unpriced(model);
  const ofTokens = price ? promptTokens * price.prompt + completionTokens * price.completion : 0;
  return countsOf({ tokens, money: ofTokens / 1e6 + money, sandboxS, toolCalls });
}

function unpriced(model: string | undefined): RatchetError {
  const [what, where] =
    model === undefined
      ? ['the policy’s tokens', 'prompt and completion in [cost]']
      : [`tokens of ${model}`, `a [[cost.models]] with name = "${model}"`];
  return new RatchetError(
    'ConfigInvalid',
    `Money is limited, but the price of ${what} is not known: write ${where}; 0 where they cost nothing.`,
  );
}

export function add(one: Counts, other: Counts): Counts {
  return mapUnits((unit) => one[unit] + other[unit]);
}

export function minus(one: Counts, other: Counts): Counts {
  return mapUnits((unit) => one[unit] - other[unit]);
}

export function isWithin(counts: Counts, bound: Counts): boolean {
  return beyond(counts, bound) === null;
}

/** The first unit that is used, and beyond the bound; null if there is none. */
export function beyond(counts: Counts, bound: Counts): BudgetUnit | null {
  return budgetUnits.find((unit) => counts[unit] > 0 && counts[unit] > bound[unit]) ?? null;
}

export function isNothing(counts: Counts): boolean {
  return budgetUnits.every((unit) => counts[unit] === 0);
}

/** For each unit. */
export function mapUnits<T>(value: (unit: BudgetUnit) => T): Record<BudgetUnit, T> {
  return { tokens: value('tokens'), money: value('money'), sandboxS: value('sandboxS'), toolCalls: value('toolCalls') };
}

/** What fits of a use, and the limit that does not let more of it. */
export interface Fitting {
  readonly use: Use;
  readonly cut: BudgetUnit | null;
}

/**
 * The use with as many completion tokens as fit into what is left, or with as many whole seconds of its sandbox, at least
 * one; null if not even that does. Other uses fit or do not.
 */
export function fitting(use: Use, left: Counts, prices: BudgetPrices, isMoneyLimited: boolean): Fitting | null {
  const cut = (one: Use): BudgetUnit | null => beyond(countsOfUse(one, prices, isMoneyLimited), left);
  if (cut(use) === null) return { use, cut: null };
  const { completionTokens = 0, sandboxS = 0, money = 0 } = use;
  if (sandboxS > 0)
    return mostThatFits(Math.floor(sandboxS), cut, (seconds) => ({
      ...use,
      sandboxS: seconds,
      ...(money > 0 ? { money: (money * seconds) / sandboxS } : {}),
    }));
  return mostThatFits(completionTokens - 1, cut, (tokens) => ({ ...use, completionTokens: tokens }));
}

function mostThatFits(
  most: number,
  cut: (use: Use) => BudgetUnit | null,
  useOf: (count: number) => Use,
): Fitting | null {
  if (most < 1 || cut(useOf(1)) !== null) return null;
  let [known, over] = [1, most + 1];
  while (over - known > 1) {
    const middle = Math.floor((known + over) / 2);
    if (cut(useOf(middle)) === null) known = middle;
    else over = middle;
  }
  return { use: useOf(known), cut: cut(useOf(known + 1)) };
}

const unitWords: Readonly<Record<BudgetUnit, string>> = {
  tokens: 'tokens',
  money: 'of money',
  sandboxS: 'seconds of sandboxes',
  toolCalls: 'tool calls',
};

/** `1,200 tokens`; money has the currency. */
export function amountText(unit: BudgetUnit, count: number, currency = ''): string {
  const amount = count / perUnit[unit];
  const shown = amount.toLocaleString('en', { maximumSignificantDigits: unit === 'tokens' ? 21 : 6 });
  return `${shown} ${unit === 'money' && currency !== '' ? currency : unitWords[unit]}`;
}
