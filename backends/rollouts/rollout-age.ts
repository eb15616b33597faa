import { staleLookMs } from '../../core/limits.ts';
import { isStale } from '../../core/rl/staleness.ts';
import type { ServedPolicy } from '../inference/index.ts';

/** A rollout that is played with weights that change meanwhile. */
export interface RolloutAge {
  /** Raised when its oldest token is too old to be trained by any step to come; the reason says so. */
  readonly signal: AbortSignal;
  /** A turn is, or was, begun with this version. */
  began(step: number): void;
  end(): void;
}

/**
 * How old the oldest token of each rollout in play is. Once step n's version is served, what comes is trained in step n+1 at the earliest: what
 * is too old for that is given up while it is played.
 */
export class RolloutAges {
  readonly #newest: () => Promise<ServedPolicy>;
  readonly #maxOffPolicySteps: number;
  readonly #inPlay = new Set<(newestStep: number) => void>();
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(newest: () => Promise<ServedPolicy>, maxOffPolicySteps: number) {
    this.#newest = newest;
    this.#maxOffPolicySteps = maxOffPolicySteps;
  }

  begin(): RolloutAge {
    const over = new AbortController();
    let oldest = Infinity;
    const look = (newestStep: number): void => {
      if (!isStale(oldest, newestStep + 1, this.#maxOffPolicySteps)) return;
      over.abort(
        new Error(
          `Its oldest token is of v${oldest}, and v${newestStep} is served: max_off_policy_steps = ${this.#maxOffPolicySteps}.`,
        ),
      );
    };
    this.#inPlay.add(look);
    this.#timer ??= setInterval(() => void this.#lookAtAll(), staleLookMs).unref();
    return {
      signal: over.signal,
      began: (step) => void (oldest = Math.min(oldest, step)),
      end: () => {
        this.#inPlay.delete(look);
        if (this.#inPlay.size > 0) return;
        clearInterval(this.#timer);
        this.#timer = undefined;
      },
    };
  }

  /** A store that does not answer tells nothing new. */
  async #lookAtAll(): Promise<void> {
    const newest = await this.#newest().catch(() => null);
    if (newest) for (const look of this.#inPlay) look(newest.version.step);
  }
}
