/** Raised when nothing of some work has come to its end for `limitMs`: what is left is not waited for any longer. */
export class Standstill {
  readonly #over = new AbortController();
  readonly #limitMs: number;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(limitMs: number) {
    this.#limitMs = limitMs;
    this.moved();
  }

  get signal(): AbortSignal {
    return this.#over.signal;
  }

  get isOver(): boolean {
    return this.#over.signal.aborted;
  }

  /** Something has come to its end. */
  moved(): void {
    clearTimeout(this.#timer);
    if (!this.isOver) this.#timer = setTimeout(() => this.#over.abort(), this.#limitMs).unref();
  }

  /** The work is done, or has failed: whatever is still under way is told to stop. */
  end(): void {
    clearTimeout(this.#timer);
    this.#over.abort();
  }
}
