interface StopStringOptions {
  readonly stops: readonly string[];
  /** The text keeps the stop string it ends with. */
  readonly includeStop: boolean;
}

/**
 * Finds stop strings in a text that arrives in pieces, across their borders. Returns a piece as soon as it cannot begin
 * a stop string, so nothing ever has to be taken back.
 */
export class StopStringScanner {
  readonly #options: StopStringOptions;
  /** The longest end of the text so far that begins a stop string. */
  #held = '';
  #matched: string | null = null;

  constructor(options: StopStringOptions) {
    this.#options = options;
  }

  /** The stop string the text ends before: of those found the first in the text, then the first in the list. */
  get matched(): string | null {
    return this.#matched;
  }

  /** Returns the text that can no longer belong to a stop string. Returns nothing after a match. */
  push(piece: string): string {
    if (this.#matched !== null) return '';
    const text = this.#held + piece;
    const match = firstMatch(text, this.#options.stops);
    if (match) {
      this.#matched = match.stop;
      this.#held = '';
      return text.slice(0, this.#options.includeStop ? match.start + match.stop.length : match.start);
    }
    const heldLength = Math.max(0, ...this.#options.stops.map((stop) => overlap(text, stop)));
    this.#held = text.slice(text.length - heldLength);
    return text.slice(0, text.length - heldLength);
  }

  /** Returns the held-back text when the completion ends without a stop string. */
  finish(): string {
    const held = this.#held;
    this.#held = '';
    return held;
  }
}

function firstMatch(text: string, stops: readonly string[]): { stop: string; start: number } | null {
  let first: { stop: string; start: number } | null = null;
  for (const stop of stops) {
    const start = text.indexOf(stop);
    if (start >= 0 && (!first || start < first.start)) first = { stop, start };
  }
  return first;
}

/** Length of the longest end of `text` that is a proper beginning of `word`. */
export function overlap(text: string, word: string): number {
  for (let length = Math.min(text.length, word.length - 1); length > 0; length--) {
    if (text.endsWith(word.slice(0, length))) return length;
  }
  return 0;
}
