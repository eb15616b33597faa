import type { RatchetError } from '../../core/errors.ts';
import { onAbort } from '../../core/on-abort.ts';

/** The admitted place, or the place that the ticket waits for; null = every place is full. */
export type Admission<Place> = { readonly entered: Place } | { readonly waitsFor: Place | null };

interface Waiting<Ticket, Place> {
  readonly ticket: Ticket;
  /** Those with the least come first. */
  readonly turn: number;
  readonly since: number;
  readonly resolve: (place: Place) => void;
  readonly reject: (error: unknown) => void;
  isGone: boolean;
}

const nobody: ReadonlySet<never> = new Set();

/** Interval of checks whether waiting is in vain. */
const lookMs = 500;

/** Whose ticket it is, and how much of a place it takes. */
export interface Share {
  readonly of: string;
  readonly size: number;
}

/**
 * An admission queue for several places. Those who have tickets waiting get equal shares (start-time fair queueing), and
 * tickets of one are first come, first served; but no ticket waits behind one for another place. A waiting ticket can
 * leave at any moment.
 */
export class AdmissionQueue<Ticket, Place> {
  readonly #admit: (ticket: Ticket, taken: ReadonlySet<Place>) => Admission<Place>;
  readonly #whyInVain: (ticket: Ticket, waitedMs: number) => RatchetError | null;
  #queue: Waiting<Ticket, Place>[] = [];
  /** The turn of the newest ticket that was admitted after a wait, and where the turns of each name end. */
  #turn = 0;
  readonly #ends = new Map<string, number>();
  #looking: ReturnType<typeof setInterval> | undefined;
  #isStirred = false;

  /**
   * `admit` counts admissions, and must refuse a place that is `taken`, since an earlier ticket waits for it.
   * `whyInVain` returns an error to stop waiting.
   */
  constructor(
    admit: (ticket: Ticket, taken: ReadonlySet<Place>) => Admission<Place>,
    whyInVain: (ticket: Ticket, waitedMs: number) => RatchetError | null,
  ) {
    this.#admit = admit;
    this.#whyInVain = whyInVain;
  }

  /** Enters without waiting; null if others wait, or there is no room. */
  enterNow(ticket: Ticket): Place | null {
    if (this.#queue.length > 0) return null;
    const admission = this.#admit(ticket, nobody);
    return 'entered' in admission ? admission.entered : null;
  }

  /** Throws the signal's reason as soon as it is raised, and the error of `whyInVain`. */
  async wait(ticket: Ticket, { of, size }: Share, signal: AbortSignal | undefined): Promise<Place> {
    signal?.throwIfAborted();
    return new Promise<Place>((resolve, reject) => {
      const settle = (done: () => void): void => {
        forget();
        done();
      };
      const turn = Math.max(this.#turn, this.#ends.get(of) ?? 0);
      this.#ends.set(of, turn + size);
      const waiting: Waiting<Ticket, Place> = {
        ticket,
        turn,
        since: performance.now(),
        resolve: (place) => settle(() => resolve(place)),
        reject: (error) => settle(() => reject(error)),
        isGone: false,
      };
      const forget = onAbort(signal, () => {
        if (waiting.isGone) return;
        waiting.isGone = true;
        waiting.reject(signal!.reason);
        this.stir(); // it may have held back others
      });
      const at = this.#queue.findLastIndex((other) => other.turn <= turn) + 1;
      this.#queue.splice(at, 0, waiting);
      this.#looking ??= setInterval(() => this.#look(), lookMs);
      this.stir();
    });
  }

  /** Something may have become free: admits tickets at the end of this turn of the event loop. */
  stir(): void {
    if (this.#isStirred || this.#queue.length === 0) return;
    this.#isStirred = true;
    queueMicrotask(() => {
      this.#isStirred = false;
      this.#letIn();
    });
  }

  #letIn(): void {
    const taken = new Set<Place>();
    const stay: Waiting<Ticket, Place>[] = [];
    let i = 0;
    for (let isFull = false; i < this.#queue.length && !isFull; i++) {
      const waiting = this.#queue[i]!;
      if (waiting.isGone) continue;
      const admission = this.#admit(waiting.ticket, taken);
      if ('entered' in admission) {
        waiting.isGone = true;
        this.#turn = Math.max(this.#turn, waiting.turn);
        waiting.resolve(admission.entered);
      } else {
        if (admission.waitsFor === null) isFull = true;
        else taken.add(admission.waitsFor);
        stay.push(waiting);
      }
    }
    // In place: thousands may wait, and a copy of them for each that enters was a fifth of a turn's garbage.
    const gone = i - stay.length;
    for (const [k, waiting] of stay.entries()) this.#queue[gone + k] = waiting;
    this.#queue.splice(0, gone);
    this.#restIfEmpty();
  }

  #look(): void {
    for (const waiting of this.#queue) {
      if (waiting.isGone) continue;
      const why = this.#whyInVain(waiting.ticket, performance.now() - waiting.since);
      if (!why) continue;
      waiting.isGone = true;
      waiting.reject(why);
    }
    this.#queue = this.#queue.filter(({ isGone }) => !isGone);
    this.#restIfEmpty();
  }

  #restIfEmpty(): void {
    if (this.#queue.length > 0) return;
    this.#turn = 0;
    this.#ends.clear();
    clearInterval(this.#looking);
    this.#looking = undefined;
  }
}
