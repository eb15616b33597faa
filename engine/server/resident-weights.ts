import type { Parameters } from '../model/parameters.ts';

/** Weights that can be loaded again, so they need not stay in memory. */
export interface WeightSource {
  /** Bytes of the weights, including their packed form in sessions. */
  readonly bytes: number;
  /** Whether their files are still in place. */
  readonly canReadAgain: () => Promise<boolean>;
  /** `spare`: memory of other weights that is free now; null = there is none. */
  readonly read: (spare: Float32Array | null) => Promise<Parameters>;
  /** Closes everything made from the weights, so that their memory is free. */
  readonly close: (parameters: Parameters) => Promise<void>;
}

interface Resident {
  readonly parameters: Parameters;
  users: number;
  /** Higher = used more recently. */
  lastUse: number;
}

interface Waiter {
  readonly source: WeightSource;
  readonly since: number;
  readonly start: (parameters: Parameters) => void;
  readonly fail: (reason: unknown) => void;
}

/**
 * Time that loaded weights may stay in use while others wait, as a multiple of the last loading time. Most of the time
 * is then spent sampling.
 */
const patienceFactor = 10;
const patienceMsMin = 1_000;

/**
 * Weights in memory, within a bound. Requests are served in order. Weights that do not fit wait until others are unused; once they have
 * waited long enough, later requests wait behind them. A single version is always allowed, whatever its size.
 */
export class ResidentWeights {
  readonly #bytesMax: () => number;
  /** Whether weights are to stay that cannot be read again; the others leave for good. */
  readonly #mustStay: (source: WeightSource) => boolean;
  readonly #residents = new Map<WeightSource, Resident>();
  readonly #dropped = new WeakSet<WeightSource>();
  #waiters: Waiter[] = [];
  #changing: Promise<void> | null = null;
  #patienceMs = patienceMsMin;
  #clock = 0;

  constructor(bytesMax: () => number, mustStay: (source: WeightSource) => boolean = () => false) {
    this.#bytesMax = bytesMax;
    this.#mustStay = mustStay;
  }

  get bytes(): number {
    return [...this.#residents.keys()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Runs `work` with weights that stay in memory until it is done. */
  async use<Result>(
    source: WeightSource,
    work: (parameters: Parameters) => Promise<Result>,
    signal?: AbortSignal,
  ): Promise<Result> {
    const parameters = await this.#take(source, signal);
    try {
      return await work(parameters);
    } finally {
      this.#residents.get(source)!.users--;
      this.#serve();
    }
  }

  /**
   * Marks weights as no longer needed. Resolves when they are unloaded, or at once while they are in use: they are then unloaded
   * afterwards.
   */
  async drop(source: WeightSource): Promise<void> {
    this.#dropped.add(source);
    this.#serve();
    await this.#changing;
  }

  #take(source: WeightSource, signal: AbortSignal | undefined): Promise<Parameters> {
    signal?.throwIfAborted();
    this.#dropped.delete(source);
    return new Promise((resolve, reject) => {
      const settled = (): void => signal?.removeEventListener('abort', onAbort);
      const waiter: Waiter = {
        source,
        since: performance.now(),
        start: (parameters) => (settled(), resolve(parameters)),
        fail: (reason) => (settled(), reject(reason)),
      };
      const onAbort = (): void => {
        this.#waiters = this.#waiters.filter((other) => other !== waiter);
        reject(signal!.reason);
        this.#serve();
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.push(waiter);
      this.#serve();
    });
  }

  /** Starts every waiter that can start. Nothing starts while weights are loaded or unloaded. */
  #serve(): void {
    if (this.#changing) return;
    const isLetGo = this.#idle().some(([source]) => this.#dropped.has(source));
    if (!isLetGo) this.#startResidents();
    const [first] = this.#waiters;
    if (isLetGo || (first && this.#mayRead(first.source))) {
      this.#changing = this.#change(isLetGo ? null : first!.source).finally(() => {
        this.#changing = null;
        this.#serve();
      });
      return;
    }
    if (!first || performance.now() - first.since > this.#patienceMs) return;
    for (const waiter of this.#waiters.filter(({ source }) => this.#residents.has(source))) this.#start(waiter);
  }

  /** Starts the first waiting requests whose weights are loaded. */
  #startResidents(): void {
    for (const waiter of this.#waiters) {
      if (!this.#residents.has(waiter.source)) return;
      this.#start(waiter);
    }
  }

  #start(waiter: Waiter): void {
    const resident = this.#residents.get(waiter.source)!;
    this.#waiters = this.#waiters.filter((other) => other !== waiter);
    resident.users++;
    resident.lastUse = ++this.#clock;
    waiter.start(resident.parameters);
  }

  #idle(): [WeightSource, Resident][] {
    return [...this.#residents]
      .filter(([, { users }]) => users === 0)
      .toSorted(([, a], [, b]) => a.lastUse - b.lastUse);
  }

  /** Whether weights of this size fit after all unused weights are unloaded. */
  #mayRead({ bytes }: WeightSource): boolean {
    const used = [...this.#residents].filter(([, { users }]) => users > 0);
    const usedBytes = used.reduce((sum, [source]) => sum + source.bytes, 0);
    return used.length === 0 || usedBytes + bytes <= this.#bytesMax();
  }

  /** Unloads weights that are dropped or in the way of `wanted`, then loads `wanted`. */
  async #change(wanted: WeightSource | null): Promise<void> {
    let spare: Float32Array | null = null;
    for (const [source, { parameters }] of this.#idle()) {
      const isTooMuch = wanted !== null && this.bytes + wanted.bytes > this.#bytesMax();
      const isDropped = this.#dropped.has(source);
      if (!isTooMuch && !isDropped) continue;
      if (!isDropped && this.#mustStay(source) && !(await source.canReadAgain())) continue;
      this.#residents.delete(source);
      await source.close(parameters);
      spare = parameters.memory ?? spare;
    }
    if (wanted === null) return;
    const startedAt = performance.now();
    try {
      const parameters = await wanted.read(spare);
      this.#residents.set(wanted, { parameters, users: 0, lastUse: ++this.#clock });
      this.#patienceMs = Math.max(patienceMsMin, patienceFactor * (performance.now() - startedAt));
    } catch (error) {
      const failed = this.#waiters.filter(({ source }) => source === wanted);
      this.#waiters = this.#waiters.filter(({ source }) => source !== wanted);
      for (const { fail } of failed) fail(error);
    }
  }
}
