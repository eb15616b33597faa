/** Characters per step. Copying, comparing and searching handle about this many in the time of one step. */
const charactersOfStep = 64;
/** V8 stores at most two bytes per character. */
const bytesOfCharacter = 2;

interface TemplateBounds {
  readonly stepsMax: number;
  readonly bytesMax: number;
}

/**
 * Counts the work and memory of rendering a chat template, identically on every machine. Each operation is counted before it runs, and one
 * that goes over a bound is refused by name.
 */
export class TemplateMeter {
  readonly #bounds: TemplateBounds;
  #steps = 0;
  #bytes = 0;

  constructor(bounds: TemplateBounds) {
    this.#bounds = bounds;
  }

  /** Counts steps that create no text. */
  spend(steps: number, what: string): void {
    this.#steps += steps;
    if (this.#steps <= this.#bounds.stepsMax) return; // written this way round so that NaN is refused too
    throw new Error(
      `${what} would bring it to more than ${this.#bounds.stepsMax} steps; real templates take a few hundred per message.`,
    );
  }

  /** Counts the reading of a text. */
  read(characters: number, what: string): void {
    this.spend(Math.ceil(characters / charactersOfStep), what);
  }

  text(characters: number, what: string): void {
    this.read(characters, what);
    this.hold(characters * bytesOfCharacter, what);
  }

  /** Counts the creation of several values, in a list or one by one. */
  items(count: number, bytesOfEach: number, what: string): void {
    this.spend(count, what);
    this.hold(count * bytesOfEach, what);
  }

  /** Counts allocated bytes. Freed bytes are not subtracted. */
  hold(bytes: number, what: string): void {
    this.#bytes += bytes;
    if (this.#bytes <= this.#bounds.bytesMax) return;
    throw new Error(
      `${what} would bring its texts and lists to more than ${this.#bounds.bytesMax} bytes; real templates create a few times the size of their input.`,
    );
  }
}
