import type { Amounts, BudgetUnit } from '../../settings/budgets.ts';
import type { EffectCounts } from './effects.ts';
import type { NamedRollout } from './rollout-label.ts';

/**
 * What a worker writes down every few seconds about a chunk that it plays, for people who look. Nothing is decided by
 * it. The turns themselves are stored beside it: a rollout says where its newest one is.
 */
export interface ChunkInPlay {
  /** `HOST:PID:START` of the process. */
  readonly worker: string;
  /** Of the chunk, from 1; each goes on with what the one before left. */
  readonly attempt: number;
  readonly writtenAtMs: number;
  /** It says something again by then, whatever happens, for as long as a rollout is in play. Absent in older objects. */
  readonly nextByMs?: number;
  /** Groups of the chunk, as ranges. */
  readonly ordinals: string;
  /** Those that have begun and not ended. */
  readonly rollouts: readonly RolloutInPlay[];
  /** Numbers of rollouts that have not begun, and that have ended. */
  readonly waiting: number;
  readonly ended: number;
}

export interface RolloutInPlay extends NamedRollout {
  /** Tries by this worker, from 1: an environment that fails is opened anew. */
  readonly tries: number;
  readonly begunAtMs: number;
  /** End of its newest turn; absent before the first. */
  readonly lastTurnAtMs?: number;
  /** Finished turns of this try, those answered from the store included. */
  readonly turns: number;
  readonly promptTokens: number;
  readonly tokens: number;
  readonly toolCalls: number;
  /** Stored turns when the try began, and the places of those that were answered from the store, as ranges. */
  readonly earlier: number;
  readonly recalled: string;
  /** Those of them that were finished before the snapshot in which its program went on; absent without one. */
  readonly kept?: string;
  /** Where its newest turn is stored; absent if none is. */
  readonly newest?: RowPlace;
  /** Its calls that change something outside; `in_doubt` means here that it has no answer yet. */
  readonly effects?: EffectCounts;
  /** Number of the newest object with its notes, and the attempt that writes them. */
  readonly notes?: { readonly part: number; readonly by: string };
  readonly sandbox?: SandboxInPlay;
  /** What its budget counts, and its limits; absent without a budget. */
  readonly budget?: BudgetInPlay;
}

/** A line of one of several numbered objects. */
export interface RowPlace {
  readonly part: number;
  readonly row: number;
}

export interface SandboxInPlay {
  /** Kind of its provider. */
  readonly provider: string;
  /** Name of its lease. */
  readonly name: string;
  readonly sinceMs: number;
  readonly deadlineAtMs: number;
}

export interface BudgetInPlay {
  readonly used: Amounts;
  readonly limits: Readonly<Partial<Record<BudgetUnit | 'wallS', number>>>;
}
