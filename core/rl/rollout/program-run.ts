import type { Amounts } from '../../settings/budgets.ts';

/** What is known of an agent's program after a rollout. Plain data, stored with it. */
export interface ProgramRun {
  /** null when a signal ended it, or the rollout ended first. */
  readonly exitCode: number | null;
  readonly signal?: string;
  /** Why it was stopped; absent: it ended by itself. */
  readonly stopped?: ProgramStop;
  /** Seconds of the program, and of all before it: the sandbox, its files, its set-up. */
  readonly seconds: number;
  readonly setupS: number;
  /** The ends of what it printed, bounded, without secrets. */
  readonly stdout: string;
  readonly stderr: string;
  /** Calls of the policy that were sampled, those that were answered from the store, and calls of other models. */
  readonly calls: {
    readonly sampled: number;
    readonly recalled: number;
    readonly others: number;
    /** Calls that were finished before the snapshot in which the program went on; absent without one. */
    readonly kept?: number;
  };
  /**
   * Snapshots for going on after a death; why one could not be taken; and how often one was put off because other calls
   * were under way, or effects that were begun and not settled. Absent where there are none.
   */
  readonly snapshots?: {
    readonly taken: number;
    readonly error?: string;
    readonly putOff?: { readonly calls: number; readonly effects: number };
  };
  /** Seconds of each turn of the rollout, in order, and which were answered from the store, as ranges of positions. */
  readonly turns?: {
    readonly seconds: readonly number[];
    readonly recalled: string;
  };
  /** The sandbox of the last attempt; `name` is that of its lease. */
  readonly sandbox?: { readonly provider: string; readonly name: string; readonly seconds: number };
  /** What its budget counted; absent without a budget. */
  readonly used?: Amounts;
  /** Fields of its calls that had no effect: the run's file decides how the policy is sampled. */
  readonly ignored?: readonly string[];
  /**
   * Outputs of tools, by the tool's name, that differed from those that an earlier attempt had and count as the same: the
   * rollout's rows have the recorded ones, its sandbox has this attempt's.
   */
  readonly mapped?: Readonly<Record<string, number>>;
  /** What an earlier attempt had sampled and this one did not ask for: its turns, their tokens, and the first difference. */
  readonly setAside?: {
    readonly turns: number;
    readonly tokens: number;
    readonly was?: string;
    readonly is?: string;
  };
  /** Files that were collected for scoring, by path: their text. */
  readonly files?: Readonly<Record<string, string>>;
}

/**
 *     time    the rollout's time was over
 *     tool    it made no call for `tool_timeout`
 *     turn    a call of the policy took `turn_timeout`
 *     limit   the policy refused to go on: its turns, tokens or budget are used up
 */
export type ProgramStop = 'time' | 'tool' | 'turn' | 'limit';
