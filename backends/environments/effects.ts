import { createHash, randomUUID } from 'node:crypto';
import type { JsonValue } from '../../core/json-value.ts';
import { effectAnswerCharsMax } from '../../core/limits.ts';
import {
  type BegunEffect,
  type BegunNote,
  type Effect,
  effectNotes,
  effectKinds,
  type EffectKind,
  sayInDoubt,
} from '../../core/rl/rollout/effects.ts';
import type { RolloutNotes } from '../../core/rl/rollout/notes.ts';
import { failpoint } from '../../store/failpoints.ts';

/** Kept characters of a call's arguments; its turn has all of them. */
const argumentsCharsMax = 2_000;

/** Whether a once-only call happened is not known: its rollout ends as `in_doubt`. */
export class EffectInDoubt extends Error {
  override readonly name = 'EffectInDoubt';
}

/** The key of a call is that of another call of its rollout, or of none. */
export class EffectKeyTaken extends Error {
  override readonly name = 'EffectKeyTaken';
}

/** Writes a call down before it is made, and says whether it is to be made. */
export async function beginEffect(notes: RolloutNotes, effect: Effect): Promise<BegunEffect> {
  const { kind, key, name } = effect;
  const text = textOf(effect);
  const digest = createHash('sha256').update(text).digest('hex');
  const by = randomUUID();
  await failpoint('effect.begin');
  const said = text.length <= argumentsCharsMax ? text : `${text.slice(0, argumentsCharsMax - 1)}…`;
  const note = { kind, name, arguments: said, digest, by } satisfies BegunNote;
  const begun = (await notes.put(effectNotes.begun, key, note)) as unknown as BegunNote;
  if (begun.kind !== kind || begun.digest !== digest) {
    throw new EffectKeyTaken(
      `The key ${key} is that of another call of this rollout: ${begun.kind} ${begun.name} ${begun.arguments}. A call needs a key of its own, which is the same when it is made again.`,
    );
  }
  const isAgain = begun.by !== by;
  if (isAgain) {
    const settled = await notes.get(effectNotes.settled, key);
    if (settled !== undefined) return { state: 'settled', answer: (settled as { readonly answer: JsonValue }).answer };
    if (kind === 'once') return { state: 'in_doubt' };
    await notes.put(effectNotes.again, by, key);
  }
  await failpoint('effect.begun');
  return { state: 'make', idempotencyKey: await notes.uniqueKey(key), isAgain };
}

/** Writes the answer of a call down; the first one stands, and is returned. Throws `EffectKeyTaken` if none was begun. */
export async function settleEffect(notes: RolloutNotes, key: string, answer: JsonValue): Promise<JsonValue> {
  if ((await notes.get(effectNotes.begun, key)) === undefined) {
    throw new EffectKeyTaken(`No call with the key ${key} was begun in this rollout, so none can be settled.`);
  }
  await failpoint('effect.made');
  const stands = (await notes.put(effectNotes.settled, key, { answer })) as { readonly answer: JsonValue };
  await failpoint('effect.settled');
  return stands.answer;
}

/**
 * Makes a call with an effect, unless an earlier attempt has settled it. Without notes (outside of runs, evaluations
 * and searches) it is simply made. Throws `EffectInDoubt` if it is to be made once, and may have happened before. So it
 * does when `make` throws: a call that is known to have failed returns an answer that says so.
 */
export async function makeEffect(
  notes: RolloutNotes | undefined,
  effect: Effect,
  make: (idempotencyKey: string) => Promise<string>,
): Promise<string> {
  if (notes === undefined) return cut(await make(randomUUID()));
  const begun = await beginEffect(notes, effect);
  if (begun.state === 'settled') return begun.answer as string;
  if (begun.state === 'in_doubt') throw inDoubt(effect);
  let answer: string;
  try {
    answer = cut(await make(begun.idempotencyKey));
  } catch (error) {
    throw effect.kind === 'once' ? inDoubt(effect, error as Error) : error;
  }
  return (await settleEffect(notes, effect.key, answer)) as string;
}

export function isEffectKind(value: unknown): value is EffectKind {
  return (effectKinds as readonly unknown[]).includes(value);
}

/** The key of a call that is known by what is called, its arguments, and how many equal ones came before. */
export function effectKey(name: string, argumentsText: string, before: number): string {
  const digest = createHash('sha256').update(argumentsText).digest('hex').slice(0, 16);
  return `${name}#${digest}#${before}`;
}

/** Arguments as JSON; a text has that form already, as models write it. */
function textOf({ arguments: given }: Pick<Effect, 'arguments'>): string {
  return typeof given === 'string' ? given : JSON.stringify(given);
}

function inDoubt({ name, ...effect }: Effect, cause?: Error): EffectInDoubt {
  const said = sayInDoubt({ ...effect, name, arguments: textOf(effect), digest: '', by: '' });
  const why = cause === undefined ? '' : ` (it threw ${cause.message})`;
  return new EffectInDoubt(said + why, cause === undefined ? undefined : { cause });
}

/** A text as it is written down, which the model sees in every attempt. */
export function cut(answer: string): string {
  if (answer.length <= effectAnswerCharsMax) return answer;
  return `${answer.slice(0, effectAnswerCharsMax)}\n[cut: ${answer.length - effectAnswerCharsMax} more characters]`;
}
