import { condition } from '@temporalio/workflow';

/**
 * Who may ask servers that hold one version: many who train, or one evaluation, never both. Whoever wants to be alone is let in before
 * those who come after it.
 */
export class ServerTurns {
  #sharing = 0;
  #wanting = 0;
  #isTaken = false;
  #waiting = 0;
  /** Seconds that training stood before the servers since they were taken. */
  #waitedS = 0;
  #waitingSince = 0;

  async shared<T>(work: () => Promise<T>): Promise<T> {
    if (this.#isTaken || this.#wanting > 0) {
      if (this.#waiting++ === 0) this.#waitingSince = Date.now();
      try {
        await condition(() => !this.#isTaken && this.#wanting === 0);
      } finally {
        if (--this.#waiting === 0) this.#waitedS += (Date.now() - this.#waitingSince) / 1000;
      }
    }
    this.#sharing += 1;
    try {
      return await work();
    } finally {
      this.#sharing -= 1;
    }
  }

  async alone<T>(work: () => Promise<T>): Promise<T> {
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
