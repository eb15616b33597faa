import type { EffectCounts, EffectKind } from './effects.ts';
import type { BudgetInPlay, RolloutInPlay } from './in-play.ts';
import type { ProgramRun } from './program-run.ts';
import type { NamedRollout } from './rollout-label.ts';

/** Answers about rollouts in play, for `ratchet status` and the page. runs/progress/ makes them. */

/**
 *     in play  its worker was heard of lately
 *     silent   its worker is overdue: it hangs, does not reach the store, or has ended on another host
 *     left     its worker is known to have ended; the next attempt goes on with it
 */
export type Standing = 'in play' | 'silent' | 'left';

/** Who plays a rollout. */
export interface PlayedBy {
  /** `HOST:PID` of its worker. */
  readonly worker: string;
  readonly standing: Standing;
  /** Of its chunk, from 1. */
  readonly attempt: number;
  /** When its worker said so. */
  readonly writtenAtMs: number;
}

/** A rollout in a list of those in play. */
export interface ListedRollout extends Omit<RolloutInPlay, 'newest' | 'notes' | 'recalled' | 'kept'>, PlayedBy {
  readonly step: number;
  /** How many of its turns were taken from the store. */
  readonly fromStore: number;
}

/** Rollouts in play and those that were left, and numbers over those in play. */
export interface ListedRollouts {
  /** Those in play for the longest come first, and those that were left come last. */
  readonly rollouts: readonly ListedRollout[];
  readonly matches: number;
  /** Those of silent workers included. */
  readonly inPlay: number;
  readonly silent: number;
  readonly left: number;
  readonly byEnvironment: Readonly<Record<string, number>>;
  /** Of all chunks: rollouts that have not begun, and that have ended. */
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
export interface RolloutProgress extends NamedRollout {
  readonly state: Standing | 'ended';
  readonly lineage: string;
  readonly step: number;
  /** Set until it has ended. */
  readonly played: (PlayedBy & Pick<RolloutInPlay, 'tries' | 'begunAtMs'>) | null;
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
