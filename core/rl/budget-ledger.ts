import type { BudgetLimits, BudgetUnit } from '../settings/budgets.ts';
import { add, type Counts, limitCounts, mapUnits, minus, noCounts } from './budget.ts';

/**
 * The account of a budget that several workers share. Each state follows from the one before, and one worker makes it: a
 * worker takes a share before it makes calls, and gives back what it did not use. What a dead worker held for calls stays
 * held, as nobody knows what its last ones used. Of its sandboxes it is known how long they can have been there: the rest
 * of their time comes back. So used and held together never exceed the limits.
 */
export interface BudgetState {
  /** Number of this state, from 0. */
  readonly entry: number;
  /** ISO time: when the budget began. */
  readonly begunAt: string;
  /** Settled, over all workers. */
  readonly used: Counts;
  /** Shares that workers hold, with what they have used of them and not settled; also those of dead workers. */
  readonly held: Counts;
  /** Limits that a person set in the meantime, in place of the file's. */
  readonly limits: Partial<BudgetLimits>;
  readonly holders: Readonly<Record<string, BudgetHolder>>;
  /** Who made it. */
  readonly by: string;
}

/** A worker that holds a share or waits for one, as of its newest entry. */
export interface BudgetHolder {
  readonly entry: number;
  readonly held: Counts;
  /** Settled since it began. */
  readonly used: Counts;
  /** Calls are under way, so it may give something back. */
  readonly isBusy: boolean;
  /** It waits for more than is left: the others give back what they hold in reserve. */
  readonly isWaiting: boolean;
  /** Number of the entry with which it asked the others; an entry of theirs after it is an answer. Missing: its newest. */
  readonly asked?: number;
  /** `HOST:PID:START` of its process. */
  readonly worker?: string;
  /** In `held`, too. */
  readonly sandboxes?: readonly HeldSandboxes[];
}

/** Sandboxes of one worker for which the same was reserved, at about the same time. */
export interface HeldSandboxes {
  /** Of the first of them; none was there before. */
  readonly sinceMs: number;
  readonly count: number;
  /** For the whole time of each. */
  readonly each: SandboxCounts;
}

export type SandboxCounts = Pick<Counts, 'sandboxS' | 'money'>;

/** The state before anybody took anything. */
export function newBudget(begunAt: string): BudgetState {
  return { entry: 0, begunAt, used: noCounts, held: noCounts, limits: {}, holders: {}, by: '' };
}

export function limitsIn({ limits }: BudgetState, inFile: BudgetLimits): BudgetLimits {
  return { ...inFile, ...limits };
}

/** Infinity for what is not limited. May be negative: a person may have lowered a limit. */
export function leftIn(state: BudgetState, inFile: BudgetLimits): Counts {
  return minus(limitCounts(limitsIn(state, inFile)), add(state.used, state.held));
}

/** What a worker says of itself. */
export interface Report extends Omit<BudgetHolder, 'entry'> {
  readonly holder: string;
}

/** Entries after which a worker that said nothing is forgotten by name; what it held stays held. */
const holderForgottenAfter = 256;

/** Whether the others still hear a worker: one that has said nothing for so long may be dead. */
export function isHeard({ entry, holders }: BudgetState, holder: string): boolean {
  return entry - (holders[holder]?.entry ?? -Infinity) < holderForgottenAfter;
}

/** Workers beside this one that wait, as far as is known. */
export function othersWaiting(state: BudgetState, holder: string): readonly BudgetHolder[] {
  return Object.entries(state.holders).flatMap(([name, one]) =>
    name !== holder && one.isWaiting && isHeard(state, name) ? [one] : [],
  );
}

/** `before`: what the worker said last, in case that it was forgotten. */
export function reported(
  state: BudgetState,
  { holder, ...report }: Report,
  before: Pick<BudgetHolder, 'held' | 'used'>,
): BudgetState {
  const entry = state.entry + 1;
  // An entry of which the worker had no answer is in the store all the same.
  const { held, used } = state.holders[holder] ?? before;
  const others = Object.entries(state.holders).filter(
    ([name, one]) => name !== holder && (entry - one.entry < holderForgottenAfter || one.sandboxes !== undefined),
  );
  return {
    ...state,
    entry,
    by: holder,
    used: add(state.used, minus(report.used, used)),
    held: add(minus(state.held, held), report.held),
    holders: { ...Object.fromEntries(others), [holder]: { entry, ...report } },
  };
}

/**
 * Gives back what the sandboxes of a dead worker cannot have used: they had all ended at `endedAtMs`, on the clock of
 * that worker. null: it holds nothing for any.
 */
export function withoutSandboxesOf(
  state: BudgetState,
  holder: string,
  { endedAtMs, by }: { readonly endedAtMs: number; readonly by: string },
): BudgetState | null {
  const dead = state.holders[holder];
  if (dead?.sandboxes === undefined) return null;
  const { sandboxes, ...rest } = dead;
  const unspent = sandboxes.map((one) => unspentOf(one, endedAtMs)).reduce(add, noCounts);
  return {
    ...state,
    entry: state.entry + 1,
    by,
    held: minus(state.held, unspent),
    holders: { ...state.holders, [holder]: { ...rest, held: minus(dead.held, unspent) } },
  };
}

/** A count of `sandboxS` is a millisecond. */
function unspentOf({ sinceMs, count, each }: HeldSandboxes, endedAtMs: number): Counts {
  const sandboxS = each.sandboxS - Math.min(each.sandboxS, Math.max(0, Math.ceil(endedAtMs - sinceMs)));
  const money = Math.floor((each.money * sandboxS) / each.sandboxS);
  return { ...noCounts, sandboxS: count * sandboxS, money: count * money };
}

/** Times of reservations are told apart to this part of what each is for: that much less comes back of a dead worker's. */
const timesApart = 1 / 16;

/** Few, however many sandboxes there are. */
export function groupedSandboxes(all: Iterable<Pick<HeldSandboxes, 'sinceMs' | 'each'>>): readonly HeldSandboxes[] {
  const groups = new Map<string, HeldSandboxes>();
  for (const { sinceMs, each } of all) {
    const { sandboxS, money } = each;
    const key = [sandboxS, money, Math.floor(sinceMs / Math.max(1, sandboxS * timesApart))].join();
    const before = groups.get(key) ?? { sinceMs, count: 0, each: { sandboxS, money } };
    groups.set(key, { ...before, sinceMs: Math.min(before.sinceMs, sinceMs), count: before.count + 1 });
  }
  return [...groups.values()];
}

/** Limits that a person sets, in place of the file's. */
export function withLimits(state: BudgetState, by: string, limits: Partial<BudgetLimits>): BudgetState {
  return { ...state, entry: state.entry + 1, by, limits: { ...state.limits, ...limits } };
}

/**
 * A share: what is needed, and of what more is wished at most an eighth of what is then left, so that the others find
 * something. null if what is needed is not left.
 */
export function shareOf(left: Counts, needed: Counts, wished: Counts): Counts | null {
  const units = Object.keys(needed) as BudgetUnit[];
  if (units.some((unit) => needed[unit] > 0 && needed[unit] > left[unit])) return null;
  return mapUnits((unit) => {
    const more = Math.max(0, wished[unit] - needed[unit]);
    const spare = Math.max(0, Math.floor((left[unit] - needed[unit]) / 8));
    return needed[unit] + Math.min(more, spare);
  });
}

/** Milliseconds until the wall time is over; Infinity without a limit. */
export function wallLeftMs(state: BudgetState, inFile: BudgetLimits, nowMs: number): number {
  const { wallS } = limitsIn(state, inFile);
  return wallS === null ? Infinity : Date.parse(state.begunAt) + wallS * 1000 - nowMs;
}
