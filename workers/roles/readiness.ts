import type { Client } from '@temporalio/client';
import { pollersOf } from './find-trainers.ts';

interface ReadinessOptions {
  /** Client over the connection that the worker polls with. */
  readonly client: () => Client;
  readonly taskQueue: string;
  readonly identity: string;
  /** Whether the SDK's workers poll. */
  readonly isWorking: () => boolean;
  /** Whether the process sees the stores that it works in. */
  readonly seesStores: () => boolean;
  readonly lookMs?: number;
}

/** Interval between questions to Temporal, and after how long without an answer the worker is not ready. */
const usualLookMs = 5_000;
const looksMissed = 4;

/**
 * Whether a worker gets work: it polls, Temporal has seen it poll, still answers over the same connection with the same
 * key, and the stores are visible. A busy worker need not poll, so its last poll may be long ago.
 */
export class Readiness {
  readonly #options: ReadinessOptions;
  readonly #timer: NodeJS.Timeout;
  readonly #lookMs: number;
  #hasPolled = false;
  #answeredAt = Number.NEGATIVE_INFINITY;
  #trouble = '';
  #isLooking = false;
  #isEnding = false;

  constructor(options: ReadinessOptions) {
    this.#options = options;
    this.#lookMs = options.lookMs ?? usualLookMs;
    this.#timer = setInterval(() => void this.#look(), this.#lookMs);
    this.#timer.unref();
    void this.#look();
  }

  /** From now on the worker takes no work. */
  end(): void {
    this.#isEnding = true;
    clearInterval(this.#timer);
  }

  /** The reason why it gets no work; null when it does. Names no run and no place. */
  get whyNot(): string | null {
    if (this.#isEnding) return 'it was told to end, and takes nothing new';
    if (!this.#options.isWorking()) return 'it does not poll';
    if (performance.now() - this.#answeredAt > looksMissed * this.#lookMs)
      return `Temporal does not answer it${this.#trouble === '' ? '' : `: ${this.#trouble}`}`;
    if (!this.#hasPolled) return 'Temporal has not seen it poll yet';
    return this.#options.seesStores() ? null : 'it does not see the store of a run';
  }

  async #look(): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    const { client, taskQueue, identity } = this.#options;
    try {
      const asked = client();
      const pollers = await asked.withDeadline(Date.now() + 2 * this.#lookMs, () => pollersOf(asked, taskQueue));
      this.#answeredAt = performance.now();
      this.#trouble = '';
      this.#hasPolled ||= pollers.some((poller) => poller.identity === identity);
    } catch (error) {
      this.#trouble = error instanceof Error ? error.message.slice(0, 200) : String(error);
    } finally {
      this.#isLooking = false;
      if (!this.#hasPolled && !this.#isEnding) setTimeout(() => void this.#look(), this.#lookMs / 10).unref();
    }
  }
}
