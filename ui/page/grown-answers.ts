import { type Change, changed } from '../../core/change-between.ts';
import { answerHeaders } from '../answers.ts';

/** Requests that views repeat whenever something is new: the server sends these as changes to the previous answer. */
const growing = /\/(?:series|markers|timeline|history|histogram|evals|searches)(?:\?|$)/;
/** Answers that are held: those of a view, and of the one before. */
const heldMax = 12;

/** Newest answer to each question, to which the next change applies. */
export class GrownAnswers {
  readonly #held = new Map<string, { readonly name: string; readonly value: unknown }>();

  /**
   * Headers of the request, and a reader of its answer. The body may be a change to the answer held when it was sent.
   */
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
