import { costOf, isMoney, isTokens, moneyText, notCounted, partName, usedLines } from '../core/rl/cost.ts';
import type { CostAnswer, SeriesPart } from './answers.ts';
import type { MetricsTable } from './metrics-table.ts';

/**
 * What a run had spent by each of its steps, evaluations, searches and what rewinds left behind included. The page asks for them as it does for
 * metrics: curves of them, and of others by them, are drawn from one answer.
 */
const spent = {
  'spent/money': isMoney,
  'spent/tokens': isTokens,
  'spent/gpu_hours': (name: string) => name === 'cost/gpu_hours',
} as const;

/** Those of them that a run has. */
export function spentNames(table: MetricsTable): string[] {
  return Object.entries(spent).flatMap(([name, isPart]) => (table.names.some(isPart) ? [name] : []));
}

/** Of those that are asked for, their values at the rows with which each point ends. */
export function spentBy(
  table: MetricsTable,
  asked: readonly string[],
  lastRows: readonly number[],
): SeriesPart['values'] {
  const known = spentNames(table).filter((name) => asked.includes(name)) as (keyof typeof spent)[];
  return Object.fromEntries(known.map((name) => [name, table.sumsUpTo(table.names.filter(spent[name]), lastRows)]));
}

/** `onTheWay`: rows of the steps that led to where the run stands. */
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
