/** How much a rollout, run, evaluation or search may use. The schema in config/settings/budgets.ts makes these. */

/** What is limited besides wall time: each is reserved before it is used, and settled after it. */
export const budgetUnits = ['tokens', 'money', 'sandboxS', 'toolCalls'] as const;
export type BudgetUnit = (typeof budgetUnits)[number];

/** Names of limits in files. */
export const budgetKeys: Readonly<Record<BudgetUnit | 'wallS', string>> = {
  tokens: 'tokens',
  money: 'money',
  sandboxS: 'sandbox_seconds',
  toolCalls: 'tool_calls',
  wallS: 'wall_seconds',
};

/** Amounts by unit: tokens fed and sampled, money in the run file's currency, seconds of sandboxes, tool calls. */
export type Amounts = Readonly<Partial<Record<BudgetUnit, number>>>;

/** null = not limited. Wall time is in seconds from the begin of what is limited; pauses count. */
/** Largest limits: a larger one is a typing error, and sums of such would not be exact. */
export const budgetMost: Readonly<Record<BudgetUnit | 'wallS', number>> = {
  tokens: 1e15,
  money: 1e12,
  sandboxS: 1e12,
  toolCalls: 1e12,
  wallS: 1e9,
};

export type BudgetLimits = Readonly<Record<BudgetUnit | 'wallS', number | null>>;

/** Parts that have a budget. A rollout's is within that of its run, evaluation or search. */
export type BudgetOwner = 'rollout' | 'run' | 'evaluation' | 'search';

/** What a call may use at most, or what it has used. Its tokens are priced by the budget. */
export interface Use {
  /** The policy's tokens, unless `model` is set. */
  readonly promptTokens?: number;
  readonly completionTokens?: number;
  /** Name of another model, whose prices are in `[[cost.models]]`. */
  readonly model?: string;
  /** In addition to the price of the tokens, such as the price of a sandbox. */
  readonly money?: number;
  readonly sandboxS?: number;
  readonly toolCalls?: number;
}

/** A call is not made, as it may use more than is left. */
export interface OverBudget {
  readonly over: BudgetUnit | 'wallS';
  readonly of: BudgetOwner;
  /** The limit, what is used, and what the call may use; a sentence for people. */
  readonly text: string;
}

export interface Reservation {
  /**
   * What was reserved: less completion tokens, or less seconds of a sandbox at its price, than asked for if the rollout has
   * no more left, else all of it.
   */
  readonly use: Use;
  /** The limit of the rollout that made it less. */
  readonly cut?: BudgetUnit;
  /**
   * Gives back what was not used. Only the first call counts. More than was reserved is taken in addition, so an
   * estimate has to be an upper bound. Without an argument nothing was used.
   */
  settle(used?: Use): void;
}

/**
 * What a rollout may use, within the budget of its run, evaluation or search. A call reserves the most it may use, and is
 * not made if that is not left; so a limit is never exceeded, by any number of workers. What a dead attempt had reserved
 * counts as used in its run's budget; the rollout's own budget counts what the rollout has.
 */
export interface Budget {
  /**
   * Waits while reservations that others have not settled may give enough back. Rejects with the signal's reason.
   */
  reserve(use: Use, signal?: AbortSignal): Promise<Reservation | OverBudget>;
  /** Takes over what an earlier attempt of the rollout used, which is settled in the budgets around it. */
  adopt(use: Use): void;
  /** What the rollout has used, and what is reserved. */
  used(): Amounts;
  /** Left of each limit of the rollout and around it, less what is reserved; without the unlimited ones. */
  left(): Readonly<Partial<Record<BudgetUnit | 'wallS', number>>>;
}

export function isOver(answer: Reservation | OverBudget): answer is OverBudget {
  return 'over' in answer;
}

/** Limits with none set. */
export const unlimited: BudgetLimits = { tokens: null, money: null, sandboxS: null, toolCalls: null, wallS: null };
