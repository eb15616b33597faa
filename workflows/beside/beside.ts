import { RewindAsked } from '../control/run-control.ts';

/**
 * A promise that is awaited later, while something else is awaited first. The later await gets its failure; until then
 * the failure must not count as unhandled, or the workflow task fails instead of the run.
 */
export function awaitedLater<T>(work: Promise<T>): Promise<T> {
  work.catch(() => undefined);
  return work;
}

/** Work beside the loop: checkpoints and evaluations. Its first failure fails the run. */
export class Beside {
  #work: Promise<void>[] = [];
  #failure: { readonly reason: unknown } | null = null;

  start(work: () => Promise<void>): Promise<void> {
    const running = work().catch((reason: unknown) => {
      if (!(reason instanceof RewindAsked)) throw reason; // given up, since the run continues elsewhere
    });
    running.catch((reason: unknown) => (this.#failure ??= { reason }));
    this.#work.push(running);
    return running;
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure.reason;
  }

  async finish(): Promise<void> {
    await Promise.all(this.#work);
    this.#work = [];
  }
}

/** Ignores RewindAsked, for work that need not finish when the run continues elsewhere. */
export function unlessRewind(reason: unknown): void {
  if (!(reason instanceof RewindAsked)) throw reason;
}
