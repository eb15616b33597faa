import { onAbort } from '../../../core/on-abort.ts';

/** Concurrent rollouts among those that ran once when a child died. */
const atOnce = 4;
/** Bound on remembered rollouts: those that are never repeated are forgotten in the end. */
const rememberedMax = 16_384;

interface Waiting {
  readonly size: number;
  readonly enter: () => void;
}

/**
 * Rollouts that ran when their child died: one of them may have killed it. They are repeated a few at a time, and one
 * by one after another death, in a child of their own. So an example that kills a process costs only its own rollouts,
 * not those of a batch.
 */
export class Suspects {
  /** How often a child died under each, by the rollout's place. */
  readonly #deaths = new Map<string, number>();
  #free = atOnce;
  #queue: Waiting[] = [];

  /** Records that a child died under it, beside others. */
  accuse(place: string): void {
    this.#deaths.set(place, (this.#deaths.get(place) ?? 0) + 1);
    if (this.#deaths.size > rememberedMax) this.#deaths.delete(this.#deaths.keys().next().value!);
  }

  has(place: string): boolean {
    return this.#deaths.has(place);
  }

  acquit(place: string): void {
    this.#deaths.delete(place);
  }

  /** Does `work` in its turn, first come, first served. Throws the signal's reason when that is raised before. */
  async inTurn<T>(place: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const size = (this.#deaths.get(place) ?? 0) > 1 ? atOnce : 1;
    await this.#enter(size, signal);
    try {
      return await work();
    } finally {
      this.#free += size;
      this.#letIn();
    }
  }

  #enter(size: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    return new Promise((resolve, reject) => {
      const waiting: Waiting = {
        size,
        enter: () => {
          forget();
          resolve();
        },
      };
      const forget = onAbort(signal, () => {
        this.#queue = this.#queue.filter((other) => other !== waiting);
        reject(signal.reason as Error);
        this.#letIn();
      });
      this.#queue.push(waiting);
      this.#letIn();
    });
  }

  #letIn(): void {
    for (let first = this.#queue[0]; first && first.size <= this.#free; first = this.#queue[0]) {
      this.#queue.shift();
      this.#free -= first.size;
      first.enter();
    }
  }
}
