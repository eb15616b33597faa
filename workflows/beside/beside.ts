import { RewindAsked } from '../control/run-control.ts';

/**
 * A promise that is under way while something else is awaited. Whoever awaits it in the end gets its failure; until then
 * the failure must not count as one that nobody handles, or the workflow task fails instead of the run.
 */
export function awaitedLater<T>(work: Promise<T>): Promise<T> {
  work.catch(() => undefined);
  return work;
}

/** Work that runs beside the loop: checkpoints and evaluations. Its first failure is the run's. */
export class Beside {
  #work: Promise<void>[] = [];
  #failure: { readonly reason: unknown } | null = null;

  start(work: () => Promise<void>): Promise<void> {
    const running = work().catch((reason: unknown) => {
      if (!(reason instanceof RewindAsked)) throw reason; // given up, as the run goes on from elsewhere
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

/** For what need not be done when the run goes on from elsewhere. */
export function unlessRewind(reason: unknown): void {
  if (!(reason instanceof RewindAsked)) throw reason;
}
