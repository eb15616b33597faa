import { setTimeout as delay } from 'node:timers/promises';

/** One after another, with so many milliseconds between them at least; 0 = none. */
export class Pace {
  readonly #everyMs: number;
  #free = 0;

  constructor(everyMs: number) {
    this.#everyMs = everyMs;
  }

  /** Resolves when it is one's turn; null where that is now. Rejects with the signal's reason where that is raised before. */
  next(signal: AbortSignal): Promise<void> | null {
    if (this.#everyMs === 0) return null;
    const now = performance.now();
    const at = Math.max(now, this.#free);
    this.#free = at + this.#everyMs;
    if (at <= now) return null;
    return delay(at - now, undefined, { signal }).catch((error: unknown) => {
      throw signal.aborted ? signal.reason : error;
    });
  }
}
