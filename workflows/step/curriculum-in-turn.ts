import type { CurriculumState } from '../../core/rl/sampling/curriculum.ts';

/** Curriculum of a run. Each lease continues from the one before, and each filter from what was leased by then. */
export class CurriculumInTurn {
  #state: CurriculumState;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(state: CurriculumState) {
    this.#state = state;
  }

  get state(): CurriculumState {
    return this.#state;
  }

  /** Queues a change behind all earlier ones. */
  change<T>(work: (state: CurriculumState, set: (after: CurriculumState) => void) => Promise<T>): Promise<T> {
    const own = this.#turn.then(() => work(this.#state, (after) => (this.#state = after)));
    this.#turn = own.catch(() => undefined);
    return own;
  }

  /** Resumes the curriculum of another execution's leases. */
  goOnFrom(state: CurriculumState): void {
    this.#state = state;
  }

  /** Returns all examples to the normal pool. */
  drawAll(): void {
    const { nextOrdinal, environments } = this.#state;
    this.#state = { nextOrdinal, environments };
  }
}
