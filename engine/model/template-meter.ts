/** Characters of a text that count as one step: they are copied, compared or looked through so fast. */
const charactersOfStep = 64;
/** Of V8's strings, at most. */
const bytesOfCharacter = 2;

export interface TemplateBounds {
  readonly stepsMax: number;
  readonly bytesMax: number;
}

/**
 * What rendering a chat template has taken so far, by counts that are the same on every machine. All that costs anything is counted here
 * before it is done, and refused with its name where it would be too much.
 */
export class TemplateMeter {
  readonly #bounds: TemplateBounds;
  #steps = 0;
  #bytes = 0;

  constructor(bounds: TemplateBounds) {
    this.#bounds = bounds;
  }

  /** Work that leaves nothing. */
  spend(steps: number, what: string): void {
    this.#steps += steps;
    if (this.#steps <= this.#bounds.stepsMax) return; // and of NaN nobody gets further
    throw new Error(
      `${what} would bring it to more than ${this.#bounds.stepsMax} steps; templates of models take some hundred a message.`,
    );
  }

  /** A text is looked through. */
  read(characters: number, what: string): void {
    this.spend(Math.ceil(characters / charactersOfStep), what);
  }

  /** A text of so many characters is made. */
  text(characters: number, what: string): void {
    this.read(characters, what);
    this.hold(characters * bytesOfCharacter, what);
  }

  /** So many values are made, in a list or one by one. */
  items(count: number, bytesOfEach: number, what: string): void {
    this.spend(count, what);
    this.hold(count * bytesOfEach, what);
  }

  /** Bytes that are taken, also where they are given back later. */
  hold(bytes: number, what: string): void {
    this.#bytes += bytes;
    if (this.#bytes <= this.#bounds.bytesMax) return;
    throw new Error(
      `${what} would bring its texts and lists to more than ${this.#bounds.bytesMax} bytes; templates of models make some times what they are given.`,
    );
  }
}
