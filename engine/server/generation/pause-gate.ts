import { HttpError } from '../http-error.ts';

/** Makes new requests wait while paused. Requests that have passed continue. */
export class PauseGate {
  readonly #waitingMax: number;
  readonly #waiting = new Set<() => void>();
  #isPaused = false;

  constructor(waitingMax: number) {
    this.#waitingMax = waitingMax;
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  get waitingCount(): number {
    return this.#waiting.size;
  }

  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    this.#isPaused = false;
    for (const release of this.#waiting) release();
    this.#waiting.clear();
  }

  async pass(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (!this.#isPaused) return;
    if (this.#waiting.size >= this.#waitingMax) {
      const message = `The server is paused and ${this.#waitingMax} requests wait already. Ask again later.`;
      throw new HttpError(429, message, { headers: { 'retry-after': '1' } });
    }
    await new Promise<void>((resolve, reject) => {
      this.#waiting.add(resolve);
      signal.addEventListener('abort', () => {
        this.#waiting.delete(resolve);
        reject(signal.reason as Error);
      });
    });
  }
}
