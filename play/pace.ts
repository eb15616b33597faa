import { setTimeout as delay } from 'node:timers/promises';

/** Lets callers pass one by one, at least so many milliseconds apart; 0 = no limit. */
export class Pace {
  readonly #everyMs: number;
  #free = 0;

  constructor(everyMs: number) {
    this.#everyMs = everyMs;
  }

  /** Resolves at the caller's turn; null if that is now. Rejects with the signal's reason if that is raised first. */
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
