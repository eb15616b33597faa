import { staleLookMs } from '../core/limits.ts';
import { isStale } from '../core/rl/sampling/staleness.ts';
import type { ServedPolicy } from '../core/rl/run-state.ts';

/** A rollout that is played with weights that change meanwhile. */
interface RolloutAge {
  /** Raised when its oldest token is too old to be trained by any step to come; the reason says so. */
  readonly signal: AbortSignal;
  /** Records that a turn begins, or began, with this version. */
  began(step: number): void;
  end(): void;
}

/**
 * Tracks the oldest token of each rollout that is being generated. Once version n is served, a new batch trains in step
 * n+1 at the earliest: rollouts too old for that are given up at once.
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

  /** A store that does not answer changes nothing. */
  async #lookAtAll(): Promise<void> {
    const newest = await this.#newest().catch(() => null);
    if (newest) for (const look of this.#inPlay) look(newest.version.step);
  }
}
