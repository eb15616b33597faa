import { setTimeout as delay } from 'node:timers/promises';

interface Away {
  /** Number of pauses so far; each is longer than the last. */
  pauses: number;
  /** The pause under way; null between pauses. */
  pause: object | null;
  isOver: boolean;
  /** Number of times that it was missed. */
  misses: number;
  /** Whether it is missing since it was last seen. */
  isMissed: boolean;
  /** A look that saw the place ended a pause, and no work has succeeded since: looks alone do not end the next one. */
  wasSeen: boolean;
  look: Missed['look'];
  seen: Missed['seen'];
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
  /** Least time for which work is taken after a pause. */
  readonly openMs?: number;
}

/** A place that is missing for this long is no longer checked, since its run may be over. The next activity there checks it again. */
const forgottenAfterMs = 3_600_000;
/** Recent successful work in a place makes more work there likely. */
const servedMs = 60_000;
const placesMax = 100;

/**
 * Tracks which stores this process sees. After one was missing it takes no work for a while, so that other workers get
 * it, and looks again. Pauses end, since there may be other runs whose stores it sees; if there are, it takes work for
 * as long as it paused.
 */
export class StoreView {
  readonly #options: Required<StoreViewOptions>;
  readonly #away = new Map<string, Away>();
  /** When work went well, by place, the latest last. */
  readonly #served = new Map<string, number>();
  /** Time before which no pause begins. */
  #openUntil = -Infinity;
  #waiting: (() => void)[] = [];

  constructor(options: StoreViewOptions = {}) {
    this.#options = { pauseMs: 2_000, pauseMsMax: 15_000, lookMs: 500, lookAgainMs: 5_000, openMs: 1_000, ...options };
  }

  /** Whether this worker may poll for tasks. */
  get isClear(): boolean {
    return ![...this.#away.values()].some(({ pause }) => pause !== null);
  }

  /** Starts a pause in which the worker does not poll. The pause ends early if the place is visible again. */
  missed(place: string, { look, seen }: Missed): void {
    const known = this.#away.get(place);
    const none = { pauses: 0, pause: null, isOver: false, misses: 0, isMissed: true, wasSeen: false };
    const away: Away = known ?? { ...none, look, seen };
    this.#away.set(place, away);
    Object.assign(away, { look, seen }); // replaced by those of the newest reason
    away.misses += 1;
    away.isMissed = true;
    if (!known) void this.#watch(place, away);
    if (this.isClear && performance.now() >= this.#openUntil) void this.#pause(away);
  }

  /** Reports that work in this place succeeded. */
  saw(place: string): void {
    this.#served.delete(place);
    this.#served.set(place, performance.now());
    if (this.#served.size > placesMax) this.#served.delete(this.#served.keys().next().value!);
    const away = this.#away.get(place);
    if (!away) return;
    this.#forget(place, away);
    if (away.isMissed) away.seen();
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
    const { pauseMs, pauseMsMax, openMs } = this.#options;
    const ms = Math.min(pauseMsMax, pauseMs * 2 ** away.pauses++);
    const pause = {};
    away.pause = pause;
    await delay(ms, undefined, { ref: false });
    if (away.pause !== pause) return;
    away.pause = null;
    this.#openUntil = performance.now() + (this.#servesOthers() ? Math.max(ms, openMs) : openMs);
    this.#tellChange();
  }

  #servesOthers(): boolean {
    const since = performance.now() - servedMs;
    return [...this.#served].some(([place, at]) => at > since && !this.#away.has(place));
  }

  async #watch(place: string, away: Away): Promise<void> {
    const { lookMs, lookAgainMs } = this.#options;
    const since = performance.now();
    while (!away.isOver && performance.now() - since < forgottenAfterMs) {
      await delay(away.pause && !away.wasSeen ? lookMs : lookAgainMs, undefined, { ref: false });
      const { misses } = away;
      if (away.isOver || !away.isMissed || !(await away.look())) continue;
      if (away.isOver || misses !== away.misses) continue; // missed again meanwhile
      away.isMissed = false;
      away.seen();
      if (away.wasSeen) continue;
      away.wasSeen = true;
      away.pause = null;
      this.#tellChange();
    }
    if (!away.isOver) this.#forget(place, away);
  }

  #forget(place: string, away: Away): void {
    away.isOver = true;
    away.pause = null;
    this.#away.delete(place);
    this.#tellChange();
  }

  #tellChange(): void {
    for (const told of this.#waiting.splice(0)) told();
  }
}
