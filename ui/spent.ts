import { costOf, isMoney, isTokens, moneyText, notCounted, partName, usedLines } from '../core/rl/cost.ts';
import type { CostAnswer, SeriesPart } from './answers.ts';
import type { MetricsTable } from './metrics-table.ts';

/**
 * Amounts that a run had spent by each step, including evaluations, searches and steps that rewinds left behind. The
 * page requests them like metrics, so that one answer draws curves of them and curves over them.
 */
const spent = {
  'spent/money': isMoney,
  'spent/tokens': isTokens,
  'spent/gpu_hours': (name: string) => name === 'cost/gpu_hours',
} as const;

/** Amounts that a run has. */
export function spentNames(table: MetricsTable): string[] {
  return Object.entries(spent).flatMap(([name, isPart]) => (table.names.some(isPart) ? [name] : []));
}

/** Values of the requested amounts at the row that ends each point. */
export function spentBy(
  table: MetricsTable,
  asked: readonly string[],
  lastRows: readonly number[],
): SeriesPart['values'] {
  const known = spentNames(table).filter((name) => asked.includes(name)) as (keyof typeof spent)[];
  return Object.fromEntries(known.map((name) => [name, table.sumsUpTo(table.names.filter(spent[name]), lastRows)]));
}

/** `onTheWay`: rows of the steps that led to the run's position. */
export function costIn(
  table: MetricsTable,
  onTheWay: readonly number[],
  currency: string | undefined,
): CostAnswer | null {
  const names = table.names.filter((name) => name.includes('cost/'));
  const cost = costOf(
    names.map((name) => [name, table.sumOf(name)]),
    currency,
  );
  if (cost === null) return null;
  const way = names.filter(isMoney).flatMap((name) => onTheWay.map((row) => table.value(row, name) ?? 0));
  const left = (cost.money ?? 0) - way.reduce((sum, value) => sum + value, 0);
  const text = (money: number | null): string | null => (money === null ? null : moneyText(money, cost.currency));
  return {
    currency: cost.currency,
    money: text(cost.money),
    leftBehind: left > (cost.money ?? 0) * roundingShare ? text(left) : null,
    parts: cost.parts.map((part) => ({ name: partName(part), money: text(part.money), used: usedLines(part.used) })),
    notCounted,
  };
}

/** Sums in another order differ by less. */
const roundingShare = 1e-9;
