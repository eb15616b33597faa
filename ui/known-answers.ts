import { createHash } from 'node:crypto';
import { changeBetween } from '../core/change-between.ts';
import { answerHeaders } from './answers.ts';

/** Answers that are held, and their characters: those of a run that several people look at in several views. */
const heldMax = 24;
const heldCharacters = 16_000_000;

interface NamedAnswer {
  readonly body: string;
  readonly headers: Readonly<Record<string, string>>;
}

interface Held {
  readonly body: string;
  value?: unknown;
  /** Keyed by the name of the answer that the change begins with. */
  readonly changes: Map<string, string>;
}

/**
 * Caches the newest answers by content, so that a page which holds one gets only the change. A page with an answer no
 * longer cached gets the whole new one.
 */
export class KnownAnswers {
  readonly #held = new Map<string, Held>();

  named(body: string, known: string): NamedAnswer {
    const name = createHash('sha256').update(body).digest('base64url').slice(0, 22);
    const after = this.#hold(name, body);
    const before = known === '' ? undefined : this.#held.get(known);
    if (!before) return { body, headers: { [answerHeaders.name]: name } };
    const change = after.changes.get(known) ?? JSON.stringify(changeBetween(valueOf(before), valueOf(after)));
    after.changes.set(known, change);
    if (change.length >= body.length) return { body, headers: { [answerHeaders.name]: name } };
    return { body: change, headers: { [answerHeaders.name]: name, [answerHeaders.isChange]: '1' } };
  }

  #hold(name: string, body: string): Held {
    const held = this.#held.get(name) ?? { body, changes: new Map<string, string>() };
    this.#held.delete(name);
    this.#held.set(name, held);
    const characters = (): number => [...this.#held.values()].reduce((sum, one) => sum + one.body.length, 0);
    while (this.#held.size > 1 && (this.#held.size > heldMax || characters() > heldCharacters))
      this.#held.delete(this.#held.keys().next().value!);
    return held;
  }
}

/** The value as the page received it. */
function valueOf(held: Held): unknown {
  held.value ??= JSON.parse(held.body);
  return held.value;
}
