import type { JsonValue } from '../../json-value.ts';

/**
 * Calls of a rollout that change something outside of it. A call is written down before it is made (`begun`), and
 * settled after it with its answer. What a later attempt does with a call that was begun and not settled, because
 * whoever made it died in between, depends on its kind:
 *
 *     idempotent   made again
 *     keyed        made again with the same key, by which the other side knows it
 *     once         never made again: the rollout ends as `in_doubt`, without a reward
 *
 * A settled call is answered from what was written down, and not made again.
 */
export const effectKinds = ['idempotent', 'once', 'keyed'] as const;
export type EffectKind = (typeof effectKinds)[number];

/**
 * What became of a call: `settled` = it has its answer; `in_doubt` = it was begun, and whether it happened is not known;
 * `set_aside` = settled by an earlier attempt, on a course that the last one did not take.
 */
export const effectOutcomes = ['settled', 'in_doubt', 'set_aside'] as const;
export type EffectOutcome = (typeof effectOutcomes)[number];

/** A call before it is made. */
export interface Effect {
  readonly kind: EffectKind;
  /** Tells it from the other calls of its rollout, and is the same in every attempt. */
  readonly key: string;
  /** What is called, for people. */
  readonly name: string;
  /** Its arguments; the note of it has their beginning, and a digest. */
  readonly arguments: JsonValue;
}

/**
 * What to do with a call, once it is written down. `idempotencyKey`: unique for the call among those of all rollouts,
 * and the same in every attempt.
 */
export type BegunEffect =
  | { readonly state: 'make'; readonly idempotencyKey: string; readonly isAgain: boolean }
  | { readonly state: 'settled'; readonly answer: JsonValue }
  | { readonly state: 'in_doubt' };

/** Effects of a rollout by kind and outcome, and how many were made again; kinds and outcomes that did not occur are absent. */
export type EffectCounts = { readonly [count in `${EffectKind}_${EffectOutcome | 'again'}`]?: number };
