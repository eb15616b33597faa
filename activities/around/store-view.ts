import { setTimeout as delay } from 'node:timers/promises';

interface Away {
  /** How many pauses there were so far; each pause is longer than the last. */
  pauses: number;
  isPausing: boolean;
  isOver: boolean;
  /** A check saw the place, and no work has succeeded since. Checks then do not end the next pause early. */
  wasSeen: boolean;
  readonly look: () => Promise<boolean>;
  readonly seen: () => void;
}

/** A place that this process did not see. */
interface Missed {
  /** Whether the place is visible now. */
  readonly look: () => Promise<boolean>;
  /** Called when the place is visible again. */
  readonly seen: () => void;
}

interface StoreViewOptions {
  /** Length of the first pause, which doubles each time, and of the longest. */
  readonly pauseMs?: number;
  readonly pauseMsMax?: number;
  /** How often the place is checked, in a pause and afterwards. */
  readonly lookMs?: number;
  readonly lookAgainMs?: number;
}

/** A place that is missing for this long is no longer checked, since its run may be over. The next activity there checks it again. */
const forgottenAfterMs = 3_600_000;

/**
 * Tracks which stores this process sees. After a store is missing the process stops polling for a while, so that other workers take the
 * tasks, and then checks again. Pauses end even if the store stays away, because the process may see the stores of other runs.
 */
export class StoreView {
  readonly #options: Required<StoreViewOptions>;
  readonly #away = new Map<string, Away>();
  #waiting: (() => void)[] = [];

  constructor({ pauseMs = 2_000, pauseMsMax = 15_000, lookMs = 500, lookAgainMs = 5_000 }: StoreViewOptions = {}) {
    this.#options = { pauseMs, pauseMsMax, lookMs, lookAgainMs };
  }

  /** Whether this worker may poll for tasks. */
  get isClear(): boolean {
    return ![...this.#away.values()].some(({ isPausing }) => isPausing);
  }

  /** Starts a pause in which the worker does not poll. The pause ends early if the place is visible again. */
  missed(place: string, { look, seen }: Missed): void {
    const known = this.#away.get(place);
    const away = known ?? { pauses: 0, isPausing: false, isOver: false, wasSeen: false, look, seen };
    this.#away.set(place, away);
    if (away.isPausing) return;
    if (!known) void this.#watch(place, away);
    void this.#pause(away);
  }

  /** Reports that work in this place succeeded. */
  saw(place: string): void {
    const away = this.#away.get(place);
    if (!away) return;
    this.#forget(place, away);
    if (!away.wasSeen) away.seen();
  }

  /** Resolves when the state of the view changes. */
  change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const over = (): void => {
        signal.removeEventListener('abort', abort);
        resolve();
      };
      const abort = (): void => {
        this.#waiting = this.#waiting.filter((one) => one !== over);
        reject(signal.reason as Error);
      };
      signal.addEventListener('abort', abort, { once: true });
      this.#waiting.push(over);
    });
  }

  async #pause(away: Away): Promise<void> {
    const { pauseMs, pauseMsMax } = this.#options;
    away.isPausing = true;
    await delay(Math.min(pauseMsMax, pauseMs * 2 ** away.pauses++), undefined, { ref: false });
    away.isPausing = false;
    this.#tellChange();
  }

  async #watch(place: string, away: Away): Promise<void> {
    const { lookMs, lookAgainMs } = this.#options;
    const since = performance.now();
    while (!away.isOver && performance.now() - since < forgottenAfterMs) {
      await delay(away.isPausing ? lookMs : lookAgainMs, undefined, { ref: false });
      if (away.isOver || away.wasSeen || !(await away.look())) continue;
      away.wasSeen = true;
      away.isPausing = false;
      away.seen();
      this.#tellChange();
    }
    if (!away.isOver) this.#forget(place, away);
  }

  #forget(place: string, away: Away): void {
    away.isOver = true;
    away.isPausing = false;
    this.#away.delete(place);
    this.#tellChange();
  }

  #tellChange(): void {
    for (const told of this.#waiting.splice(0)) told();
  }
}
