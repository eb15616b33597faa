import { condition } from '@temporalio/workflow';

/**
 * Who may ask servers that hold one version: many who sample from it to train, or one who changes it (an evaluation, or the broadcast
 * of another version), never both. Whoever wants to be alone is let in before those who come after it.
 */
export class ServingSchedule {
  #sharing = 0;
  #wanting = 0;
  #isTaken = false;
  #evaluating = 0;
  #waiting = 0;
  /** Seconds that training stood before the servers for evaluations. */
  #waitedS = 0;
  #waitingSince = 0;

  async shared<T>(work: () => Promise<T>): Promise<T> {
    const isFree = (): boolean => !this.#isTaken && this.#wanting === 0;
    while (!isFree()) {
      const isForEvaluation = this.#evaluating > 0;
      if (isForEvaluation && this.#waiting++ === 0) this.#waitingSince = Date.now();
      try {
        // One that begins while a broadcast is waited for is told apart from it.
        await condition(() => isFree() || isForEvaluation !== this.#evaluating > 0);
      } finally {
        if (isForEvaluation && --this.#waiting === 0) this.#waitedS += (Date.now() - this.#waitingSince) / 1000;
      }
    }
    this.#sharing += 1;
    try {
      return await work();
    } finally {
      this.#sharing -= 1;
    }
  }

  /** For an evaluation: what training waits for it is counted. */
  async alone<T>(work: () => Promise<T>): Promise<T> {
    this.#evaluating += 1;
    try {
      return await this.changing(work);
    } finally {
      this.#evaluating -= 1;
    }
  }

  /** For another version to sample from. */
  async changing<T>(work: () => Promise<T>): Promise<T> {
    this.#wanting += 1;
    try {
      await condition(() => this.#sharing === 0 && !this.#isTaken);
      this.#isTaken = true;
    } finally {
      this.#wanting -= 1;
    }
    try {
      return await work();
    } finally {
      this.#isTaken = false;
    }
  }

  /** How long training has waited since this was asked last. */
  takeWaitedS(): number {
    const now = this.#waiting > 0 ? (Date.now() - this.#waitingSince) / 1000 : 0;
    if (this.#waiting > 0) this.#waitingSince = Date.now();
    const waited = this.#waitedS + now;
    this.#waitedS = 0;
    return waited;
  }
}
