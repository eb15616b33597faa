import { rolloutsInFlightMax } from '../core/limits.ts';
import { onAbort } from '../core/on-abort.ts';

/** Slots that rollouts take and give back. */
export interface Room {
  take(count: number, signal: AbortSignal): Promise<void>;
  give(count?: number): void;
}

/**
 * Limits rollouts in flight. Those that ask together get their slots together, in order of request: where an environment
 * scores a group in place when its last member is there, half-admitted groups would wait for each other. Some slots
 * may be reserved for names; others do not get those.
 */
export class Slots implements Room {
  #limit: number;
  #taken = 0;
  #wanted = 0;
  readonly #takenBy = new Map<string, number>();
  readonly #waiting: Waiting[] = [];
  /** Reserved slots, by name. */
  kept: Readonly<Record<string, number>> = {};
  /**
   * Leases with rollouts in flight or waiting, and the number of rollouts in the newest one; at first the whole limit.
   */
  leases: { readonly held: number; readonly newest: number };
  #resting = 0;
  /** Called on each change. */
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

  /** Rollouts that have slots, and those that wait for one. */
  get wanted(): number {
    return this.#wanted;
  }

  /** Whether other workers are to get the next leases. */
  get isResting(): boolean {
    return this.#resting > 0;
  }

  /** Leaves the next leases to other workers for `ms` milliseconds. */
  rest(ms: number): void {
    this.#resting += 1;
    setTimeout(() => {
      this.#resting -= 1;
      this.onChange();
    }, ms).unref();
  }

  /** Registers a lease with so many rollouts; returns a function that removes it. */
  enter(rollouts: number): () => void {
    this.leases = { held: this.leases.held + 1, newest: rollouts === 0 ? this.leases.newest : rollouts };
    return () => {
      this.leases = { ...this.leases, held: this.leases.held - 1 };
      this.onChange();
    };
  }

  /** Admits a group larger than the limit when nothing else is in flight. Rejects with the signal's reason. */
  async take(count: number, signal: AbortSignal, name?: string): Promise<void> {
    signal.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const entry: Waiting = {
        count,
        name,
        letIn: (): void => {
          forget();
          resolve();
        },
      };
      const forget = onAbort(signal, () => {
        const at = this.#waiting.indexOf(entry);
        if (at === -1) return;
        this.#waiting.splice(at, 1);
        this.#wanted -= count;
        reject(signal.reason as Error);
        this.#letIn();
      });
      this.#waiting.push(entry);
      this.#wanted += count;
      this.#letIn();
    });
  }

  give(count = 1, name?: string): void {
    this.#wanted -= count;
    this.#count(-count, name);
    this.#letIn();
  }

  /** The same slots for users of this name. */
  of(name: string): Room {
    return {
      take: (count, signal) => this.take(count, signal, name),
      give: (count = 1) => this.give(count, name),
    };
  }

  #letIn(): void {
    for (let next = this.#next(); next; next = this.#next()) {
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#count(next.count, next.name);
      next.letIn();
    }
    this.onChange();
  }

  /** The first in the queue; if it does not fit, the first that fits into its reserve. */
  #next(): Waiting | undefined {
    const [first] = this.#waiting;
    if (first === undefined || this.#taken === 0) return first;
    if (this.#taken + first.count + this.#keptFromOthers(first.name) <= this.#limit) return first;
    return this.#waiting.find(({ count, name }) => {
      const own = name === undefined ? 0 : (this.kept[name] ?? 0);
      return this.#heldBy(name) + count <= own && this.#taken + count <= this.#limit;
    });
  }

  /** Reserved slots of other names that are not in use. */
  #keptFromOthers(name: string | undefined): number {
    return Object.entries(this.kept).reduce(
      (sum, [other, kept]) => sum + (other === name ? 0 : Math.max(0, kept - this.#heldBy(other))),
      0,
    );
  }

  #heldBy(name: string | undefined): number {
    return name === undefined ? 0 : (this.#takenBy.get(name) ?? 0);
  }

  #count(more: number, name: string | undefined): void {
    this.#taken += more;
    if (name !== undefined) this.#takenBy.set(name, this.#heldBy(name) + more);
  }
}

interface Waiting {
  readonly count: number;
  readonly name: string | undefined;
  readonly letIn: () => void;
}

/** Slots of this process, for everything it generates. */
export const workerSlots = new Slots(rolloutsInFlightMax);

const ofRuns = new Map<string, Slots>();

/**
 * Slots of one run in this process: one pool for all its environments, with the newest limit and a reserve for each.
 */
export function slotsOf(run: string, limit: number, kept: Readonly<Record<string, number>> = {}): Slots {
  const known = ofRuns.get(run) ?? new Slots(limit);
  known.kept = kept;
  if (known.limit !== limit) known.limit = limit;
  ofRuns.delete(run);
  ofRuns.set(run, known);
  for (const [oldest, slots] of ofRuns) {
    if (ofRuns.size <= runsRemembered) break;
    if (slots.wanted === 0) ofRuns.delete(oldest);
  }
  return known;
}

const runsRemembered = 256;
