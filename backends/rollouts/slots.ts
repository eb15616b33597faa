import { rolloutsInFlightMax } from '../../core/limits.ts';
import { onAbort } from '../../core/on-abort.ts';

/**
 * Room for so many rollouts at once. All members of a group are let in together, in the order in which they asked: an environment may score
 * a group in place, when the last of it is there, and groups that are let in by halves would wait for each other.
 */
export class Slots {
  #limit: number;
  #taken = 0;
  readonly #waiting: { readonly count: number; readonly letIn: () => void }[] = [];
  /** Leases whose rollouts are in or wait, and how many rollouts the newest one began with; before there was one: as many as there is room for. */
  leases: { readonly held: number; readonly newest: number };
  /** Told of each change. */
  onChange: () => void = () => undefined;

  constructor(limit: number) {
    this.#limit = limit;
    this.leases = { held: 0, newest: limit };
  }

  get limit(): number {
    return this.#limit;
  }

  set limit(limit: number) {
    this.#limit = limit;
    this.#letIn();
  }

  /** Rollouts that are in, and those that wait for it. */
  get wanted(): number {
    return this.#waiting.reduce((sum, { count }) => sum + count, this.#taken);
  }

  /** A lease has come, with so many rollouts to play; returns how it goes. */
  enter(rollouts: number): () => void {
    this.leases = { held: this.leases.held + 1, newest: Math.max(1, rollouts) };
    return () => {
      this.leases = { ...this.leases, held: this.leases.held - 1 };
      this.onChange();
    };
  }

  /** A group larger than the limit is let in alone. Rejects with the signal's reason. */
  async take(count: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const entry = {
        count,
        letIn: (): void => {
          forget();
          resolve();
        },
      };
      const forget = onAbort(signal, () => {
        const at = this.#waiting.indexOf(entry);
        if (at === -1) return;
        this.#waiting.splice(at, 1);
        reject(signal.reason as Error);
        this.#letIn();
      });
      this.#waiting.push(entry);
      this.#letIn();
    });
  }

  give(count = 1): void {
    this.#taken -= count;
    this.#letIn();
  }

  #letIn(): void {
    for (let next = this.#waiting[0]; next; next = this.#waiting[0]) {
      if (this.#taken > 0 && this.#taken + next.count > this.#limit) break;
      this.#waiting.shift();
      this.#taken += next.count;
      next.letIn();
    }
    this.onChange();
  }
}

/** Of this process, whatever it plays. */
export const workerSlots = new Slots(rolloutsInFlightMax);

const ofRuns = new Map<string, Slots>();

/** Of one environment of one run in this process: what hangs there takes the place of others of its own alone. */
export function slotsOf(run: string, environment: string | undefined, limit: number): Slots {
  const key = JSON.stringify([run, environment]);
  const known = ofRuns.get(key) ?? new Slots(limit);
  if (known.limit !== limit) known.limit = limit;
  ofRuns.delete(key);
  ofRuns.set(key, known);
  for (const [oldest, slots] of ofRuns) {
    if (ofRuns.size <= runsRemembered) break;
    if (slots.wanted === 0) ofRuns.delete(oldest);
  }
  return known;
}

const runsRemembered = 256;
