/** Raised when no piece of some work has ended for `limitMs`: the rest is not awaited any longer. */
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

  /** Restarts the timer: some work has ended. */
  moved(): void {
    clearTimeout(this.#timer);
    if (!this.isOver) this.#timer = setTimeout(() => this.#over.abort(), this.#limitMs).unref();
  }

  /** Ends the wait: the work is done or has failed, and the rest is stopped. */
  end(): void {
    clearTimeout(this.#timer);
    this.#over.abort();
  }
}
