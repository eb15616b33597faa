import type { EffectCounts, EffectKind } from './effects.ts';
import type { BudgetInPlay, RolloutInPlay } from './in-play.ts';
import type { ProgramRun } from './program-run.ts';

/** Answers about rollouts in play, for `ratchet status` and the page. runs/progress/ makes them. */

/** A rollout in a list of those in play. */
export interface ListedRollout extends Omit<RolloutInPlay, 'newest' | 'notes' | 'recalled' | 'kept'> {
  readonly step: number;
  /** `HOST:PID` of its worker. */
  readonly worker: string;
  /** How many of its turns were taken from the store. */
  readonly fromStore: number;
  /** Of its chunk, from 1. */
  readonly attempt: number;
  /** When its worker said so. */
  readonly writtenAtMs: number;
}

/** Rollouts in play, and numbers over all of them. */
export interface ListedRollouts {
  /** Those that have been in play for the longest come first. */
  readonly rollouts: readonly ListedRollout[];
  readonly matches: number;
  readonly inPlay: number;
  readonly byEnvironment: Readonly<Record<string, number>>;
  /** Of the chunks that are played: rollouts that have not begun, and that have ended. */
  readonly waiting: number;
  readonly ended: number;
  readonly chunks: number;
  readonly workers: number;
  readonly turns: number;
  readonly tokens: number;
  readonly sandboxes: number;
}

export interface EffectProgress {
  readonly kind: EffectKind;
  readonly name: string;
  /** `open`: begun by the attempt at work; `in doubt`: begun by an earlier one, and nobody knows whether it happened. */
  readonly outcome: 'done' | 'open' | 'in doubt';
}

/**
 *     sampled   by the policy, in this attempt
 *     store     sampled by an earlier attempt; the call came again, and was answered with it
 *     snapshot  sampled by an earlier attempt, before the snapshot that its sandbox went on from
 *     earlier   sampled by an earlier attempt, and not asked for (yet): it may be set aside
 */
export type TurnFrom = 'sampled' | 'store' | 'snapshot' | 'earlier';

export interface TurnProgress {
  /** From 1. */
  readonly number: number;
  /** Set for calls of a program: its id, and the call whose conversation it continues. */
  readonly call: { readonly id: string; readonly after: string | null } | null;
  readonly from: TurnFrom;
  readonly promptTokens: number;
  readonly tokens: number;
  /** null where they were not measured. */
  readonly seconds: number | null;
  readonly version: number;
  readonly isCut: boolean;
  /** The beginning of the arguments. A program or a model wrote both. */
  readonly tools: readonly { readonly name: string; readonly arguments: string }[];
}

/** How far one rollout is, or was when it ended. */
export interface RolloutProgress {
  readonly state: 'in play' | 'ended';
  readonly lineage: string;
  readonly step: number;
  readonly group: number;
  readonly index: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly version: number;
  readonly versionEnd: number;
  /** Set while it is in play. */
  readonly played: {
    readonly worker: string;
    readonly attempt: number;
    readonly tries: number;
    readonly begunAtMs: number;
    readonly writtenAtMs: number;
  } | null;
  /** Set once it has ended. */
  readonly result: { readonly outcome: string; readonly reward: number | null; readonly error: string | null } | null;
  /** The newest, oldest first, of `turnsOf`. */
  readonly turns: readonly TurnProgress[];
  readonly turnsOf: number;
  /** The newest, oldest first. Stored with their counts alone once the rollout has ended. */
  readonly effects: readonly EffectProgress[];
  readonly effectCounts: EffectCounts | null;
  readonly sandbox: {
    readonly provider: string;
    readonly name: string;
    readonly sinceMs: number | null;
    readonly deadlineAtMs: number | null;
    /** Set once it has ended. */
    readonly seconds: number | null;
  } | null;
  readonly budget: BudgetInPlay | null;
  /** Turns of an earlier attempt that were set aside, and the first difference. */
  readonly setAside: ProgramRun['setAside'] | null;
}
