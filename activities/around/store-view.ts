import { setTimeout as delay } from 'node:timers/promises';

interface Away {
  /** Pauses so far: the next one is longer. */
  pauses: number;
  isPausing: boolean;
  isOver: boolean;
  /** It was looked for and seen, and no work went well since: it is not for looks to end the next pause. */
  wasSeen: boolean;
  readonly look: () => Promise<boolean>;
  readonly seen: () => void;
}

/** A place that was missed. */
interface Missed {
  /** Whether it is there now. */
  readonly look: () => Promise<boolean>;
  /** Called when it is there again. */
  readonly seen: () => void;
}

interface StoreViewOptions {
  /** The first pause, doubled with each, and the longest. */
  readonly pauseMs?: number;
  readonly pauseMsMax?: number;
  /** How often it is looked in a pause, and afterwards. */
  readonly lookMs?: number;
  readonly lookAgainMs?: number;
}

/** A place that stays away for so long is looked for by who asks for it next: its run may be over. */
const forgottenAfterMs = 3_600_000;

/**
 * Which stores this process sees. After it missed one it asks for no work for a while, so that others get what is to be done, and looks
 * again. The pauses end: there may be other runs, whose stores it sees.
 */
export class StoreView {
  readonly #options: Required<StoreViewOptions>;
  readonly #away = new Map<string, Away>();
  #waiting: (() => void)[] = [];

  constructor({ pauseMs = 2_000, pauseMsMax = 15_000, lookMs = 500, lookAgainMs = 5_000 }: StoreViewOptions = {}) {
    this.#options = { pauseMs, pauseMsMax, lookMs, lookAgainMs };
  }

  /** Whether to ask for work. */
  get isClear(): boolean {
    return ![...this.#away.values()].some(({ isPausing }) => isPausing);
  }

  /** A place was missed: no work is asked for in a pause, which ends sooner when the place is seen. */
  missed(place: string, { look, seen }: Missed): void {
    const known = this.#away.get(place);
    const away = known ?? { pauses: 0, isPausing: false, isOver: false, wasSeen: false, look, seen };
    this.#away.set(place, away);
    if (away.isPausing) return;
    if (!known) void this.#watch(place, away);
    void this.#pause(away);
  }

  /** Work in that place went well. */
  saw(place: string): void {
    const away = this.#away.get(place);
    if (!away) return;
    this.#forget(place, away);
    if (!away.wasSeen) away.seen();
  }

  /** Resolves when something changed about it. */
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
