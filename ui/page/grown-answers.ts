import { type Change, changed } from '../../core/change-between.ts';
import { answerHeaders } from '../answers.ts';

/** What the views ask again whenever something is new: of these the server sends what makes the new answer of the one before. */
const growing = /\/(?:series|markers|timeline|history|histogram|evals|searches)(?:\?|$)/;
/** Answers that are held: those of a view, and of the one before. */
const heldMax = 12;

/** The newest answer to each question, which the next one to it is made of. */
export class GrownAnswers {
  readonly #held = new Map<string, { readonly name: string; readonly value: unknown }>();

  /** What the request says, and how its answer is read: the body may be what makes it of the one that was there when it was asked. */
  ask(path: string): {
    readonly headers: Record<string, string>;
    readonly take: (headers: Pick<Headers, 'get'>, body: unknown) => unknown;
  } {
    if (!growing.test(path)) return { headers: {}, take: (_, body) => body };
    const before = this.#held.get(path);
    return {
      headers: { [answerHeaders.known]: before?.name ?? '' },
      take: (headers, body) => {
        const name = headers.get(answerHeaders.name);
        if (name === null) return body;
        const value =
          headers.get(answerHeaders.isChange) === null ? body : changed(before?.value, body as Change | null);
        this.#held.delete(path);
        this.#held.set(path, { name, value });
        if (this.#held.size > heldMax) this.#held.delete(this.#held.keys().next().value!);
        return value;
      },
    };
  }
}
