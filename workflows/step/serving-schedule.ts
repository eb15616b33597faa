import { condition } from '@temporalio/workflow';

/**
 * Admission to servers that hold one version: many who sample from it to train, or one who changes it (an evaluation,
 * or the broadcast of another version), never both. A request for exclusive use goes before later requests.
 */
export class ServingSchedule {
  #sharing = 0;
  #wanting = 0;
  #isTaken = false;
  #evaluating = 0;
  #waiting = 0;
  /** Seconds that training waited for evaluations at the servers. */
  #waitedS = 0;
  #waitingSince = 0;

  /** Text of a wait for `what` that shares the servers, with its holder, if any. */
  heldUp(what: string): string {
    if (this.isFree) return what;
    const who = this.#evaluating > 0 ? 'an evaluation has them for itself' : 'they are brought to another version';
    return `the policy servers (${who}), then ${what}`;
  }

  /** Whether {@link shared} would not wait. */
  get isFree(): boolean {
    return !this.#isTaken && this.#wanting === 0;
  }

  async shared<T>(work: () => Promise<T>): Promise<T> {
    while (!this.isFree) {
      const isForEvaluation = this.#evaluating > 0;
      if (isForEvaluation && this.#waiting++ === 0) this.#waitingSince = Date.now();
      try {
        // An evaluation that begins while a broadcast is awaited gets a label of its own.
        await condition(() => this.isFree || isForEvaluation !== this.#evaluating > 0);
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

  /** Exclusive use for an evaluation; the time that training waits for it is counted. */
  async alone<T>(work: () => Promise<T>): Promise<T> {
    this.#evaluating += 1;
    try {
      return await this.changing(work);
    } finally {
      this.#evaluating -= 1;
    }
  }

  /** Exclusive use for changing to another version. */
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

  /** Seconds of waiting since the last call. */
  takeWaitedS(): number {
    const now = this.#waiting > 0 ? (Date.now() - this.#waitingSince) / 1000 : 0;
    if (this.#waiting > 0) this.#waitingSince = Date.now();
    const waited = this.#waitedS + now;
    this.#waitedS = 0;
    return waited;
  }
}
