import { bodyBytesInFlightMax, tokensInFlightMax, waitingRequestsMax } from '../../limits.ts';
import { HttpError } from '../http-error.ts';

/**
 * Bounds the work in progress of all clients together. Requests beyond it are refused with "retry later"; nothing is
 * queued.
 */
export class Admission {
  readonly #bodyBytes = new Budget(bodyBytesInFlightMax, 'bytes of request bodies');
  readonly #requests = new Budget(waitingRequestsMax, 'requests');
  readonly #tokens = new Budget(tokensInFlightMax, 'prompt and completion tokens');

  /** Runs `work` with a budget that is returned when the work is done. */
  async hold<Result>(work: (budget: RequestBudget) => Promise<Result>): Promise<Result> {
    const taken = { bodyBytes: 0, requests: 0, tokens: 0 };
    try {
      return await work({
        takeBodyBytes: (amount) => (taken.bodyBytes += this.#bodyBytes.take(amount)),
        takeRequest: () => (taken.requests += this.#requests.take(1)),
        takeTokens: (amount) => (taken.tokens += this.#tokens.take(amount)),
      });
    } finally {
      this.#bodyBytes.giveBack(taken.bodyBytes);
      this.#requests.giveBack(taken.requests);
      this.#tokens.giveBack(taken.tokens);
    }
  }
}

/** Each throws a 429 answer when too much is in progress. */
export interface RequestBudget {
  readonly takeBodyBytes: (amount: number) => void;
  readonly takeRequest: () => void;
  readonly takeTokens: (amount: number) => void;
}

class Budget {
  readonly #max: number;
  readonly #what: string;
  #inFlight = 0;

  constructor(max: number, what: string) {
    this.#max = max;
    this.#what = what;
  }

  take(amount: number): number {
    if (this.#inFlight + amount > this.#max) {
      const message = `The server has ${this.#inFlight} ${this.#what} under way; ${amount} more would pass ${this.#max}. Ask again later.`;
      throw new HttpError(429, message, { code: 'rate_limit_exceeded', headers: { 'retry-after': '1' } });
    }
    this.#inFlight += amount;
    return amount;
  }

  giveBack(amount: number): void {
    this.#inFlight -= amount;
  }
}
