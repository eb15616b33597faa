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

/** What became of a call: it has its answer; or it was begun, and whether it happened is not known. */
export const effectOutcomes = ['settled', 'in_doubt'] as const;
export type EffectOutcome = (typeof effectOutcomes)[number];

/** A call before it is made. */
export interface Effect {
  readonly kind: EffectKind;
  /** Tells it from the other calls of its rollout, and is the same in every attempt. */
  readonly key: string;
  /** What is called, for people. */
  readonly name: string;
  /** Its arguments, as JSON or as a text of it; the note of it has their beginning, and a digest. */
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

/** A kind of effect and what became of it, or that it was made again. */
export type EffectCount = `${EffectKind}_${EffectOutcome | 'again'}`;
/** Effects of a rollout by kind and outcome; those that did not occur are absent. */
export type EffectCounts = { readonly [count in EffectCount]?: number };

/** Kinds of notes about effects: that a call was begun, that it was made again, and its answer. */
export const effectNotes = { begun: 'effect', again: 'effect_again', settled: 'effect_settled' } as const;

/** The note of a call that was begun. */
export interface BegunNote {
  readonly kind: EffectKind;
  readonly name: string;
  /** The beginning of its arguments as JSON, for people. */
  readonly arguments: string;
  /** Digest of all of them. */
  readonly digest: string;
  /** Random: tells who of several wrote it. */
  readonly by: string;
}

/** What is written down about the effects of a rollout. */
export interface EffectsNoted {
  readonly begun: ReadonlyMap<string, JsonValue>;
  readonly again: ReadonlyMap<string, JsonValue>;
  readonly settled: ReadonlyMap<string, JsonValue>;
}

/** The first once-only call that was begun and has no answer. */
export function callInDoubt({ begun, settled }: Pick<EffectsNoted, 'begun' | 'settled'>): BegunNote | null {
  const unsettled = [...begun].filter(([key]) => !settled.has(key)).map(([, note]) => note as unknown as BegunNote);
  return unsettled.find(({ kind }) => kind === 'once') ?? null;
}

/** Counts at the end of a rollout; null if it had no effects. */
export function countEffects({ begun, again, settled }: EffectsNoted): EffectCounts | null {
  if (begun.size === 0) return null;
  const counts: Partial<Record<EffectCount, number>> = {};
  const add = (count: EffectCount): void => void (counts[count] = (counts[count] ?? 0) + 1);
  for (const [key, note] of begun) {
    const { kind } = note as unknown as BegunNote;
    add(`${kind}_${settled.has(key) ? 'settled' : 'in_doubt'}`);
  }
  for (const key of again.values()) add(`${(begun.get(key as string) as unknown as BegunNote).kind}_again`);
  return counts;
}

export function addEffects(all: readonly (EffectCounts | undefined)[]): EffectCounts {
  const sum: Partial<Record<EffectCount, number>> = {};
  for (const counts of all) {
    for (const [name, count] of Object.entries(counts ?? {}) as [EffectCount, number][])
      sum[name] = (sum[name] ?? 0) + count;
  }
  return sum;
}

/** Effects in words: "once 3 settled, 1 in doubt; keyed 2 settled, 1 made again". Empty without any. */
export function describeEffects(counts: EffectCounts): string {
  const words = [
    ['settled', 'settled'],
    ['in_doubt', 'in doubt'],
    ['again', 'made again'],
  ] as const;
  const kinds = effectKinds.flatMap((kind) => {
    const said = words.flatMap(([name, word]) => {
      const count = counts[`${kind}_${name}`] ?? 0;
      return count === 0 ? [] : [`${count} ${word}`];
    });
    return said.length === 0 ? [] : [`${kind} ${said.join(', ')}`];
  });
  return kinds.join('; ');
}

/** What is said about a rollout that ends as `in_doubt`. */
export function sayInDoubt({ name, arguments: given }: BegunNote): string {
  return `A call that is made only once was begun and has no answer, so nobody knows whether it happened: ${name} ${given}`;
}
