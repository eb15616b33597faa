import { setImmediate } from 'node:timers/promises';
import type { ModelConfig } from '../model/config.ts';
import { parameterCount } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import { admit, batchBytes, type BatchSize, rowLengthMax } from './admission.ts';
import { DecodeBatch, type DecodeSessions, type Row, type RowRequest } from './decode-batch.ts';
import { KeyValueCache } from './key-value-cache.ts';
import { PromptCache } from './prompt-cache.ts';
import { rowBytes } from './row-bytes.ts';
import type { SamplingLimits } from './sampling-limits.ts';
import { rowsMin } from './sequence-request.ts';
import { type SampledToken, TokenChooser } from './token-choice.ts';

export interface LaneEvents {
  readonly token: (id: number, choice: SampledToken) => void;
  /** Rows that ended with an error. */
  readonly fail: (ids: readonly number[], error: unknown) => void;
  /** After every step of a version: the rows that ended with it, and the counters, which know of them. */
  readonly stepped: (ends: readonly RowEnd[], counters: LaneCounters) => void;
}

export interface RowEnd {
  readonly id: number;
  readonly finishReason: 'stop' | 'length';
}

export interface LaneCounters {
  readonly rowsRunning: number;
  readonly rowsWaiting: number;
  readonly tokensTotal: number;
  /** Keys and values that running rows may come to need. */
  readonly keyValueBytesUsed: number;
  /** Memory kept for keys and values: of running rows, of the next ones, and of prompts. */
  readonly keyValueBytesKept: number;
  /** Prompt tokens of all rows that ran, and those that were computed: the others were shared. */
  readonly promptTokensTotal: number;
  readonly promptTokensComputed: number;
}

export const noCounters: LaneCounters = {
  rowsRunning: 0,
  rowsWaiting: 0,
  tokensTotal: 0,
  keyValueBytesUsed: 0,
  keyValueBytesKept: 0,
  promptTokensTotal: 0,
  promptTokensComputed: 0,
};

export interface LaneOptions extends SamplingLimits {
  /**
   * Positions times parameters of a run up to which it is computed on the lane's own thread, which then does nothing else:
   * a hand-over to another one takes longer than it is worth.
   */
  readonly workHereMax: number;
}

export interface NewRow {
  readonly id: number;
  readonly request: RowRequest;
}

/** Opens and holds a version's sessions for a lane. */
export interface LaneProgram<Weights> {
  /** The lane may use them until `done`. */
  use(version: number, weights: Weights): Promise<DecodeSessions>;
  done(version: number): void;
}

/** Rows are decoded one step at a time on one processor, in batches by policy version. */
export interface Lane<Weights = Parameters> {
  /** The weights stay as they are while rows of them wait or run; afterwards the lane lets go of them. */
  submit(version: number, weights: Weights, rows: readonly NewRow[]): void;
  /** No rows of this version will come: its prompts need not be kept. */
  forget(version: number): void;
  /** Dropped rows leave at the next step and cause no more events. */
  drop(ids: readonly number[]): void;
  /** Ends after the step in progress; rows are forgotten. */
  close(): Promise<void>;
}

interface Version<Weights> {
  readonly key: number;
  readonly weights: Weights;
  waiting: Row[];
  batch: DecodeBatch | null;
  cache: KeyValueCache | null;
}

/**
 * Decodes the rows of several versions in alternation, one step each. At every step rows join in order of arrival while
 * there is room. A version that has used up its share waits for its own rows. A version without running rows that finds
 * no room holds back later arrivals, so that none starves.
 */
export class DecodeLane<Weights = Parameters> implements Lane<Weights> {
  readonly #config: ModelConfig;
  readonly #program: LaneProgram<Weights>;
  readonly #parameterCount: number;
  readonly #options: LaneOptions;
  readonly #events: LaneEvents;
  readonly #prefillCache: KeyValueCache;
  readonly #prompts: PromptCache;
  readonly #versions = new Map<number, Version<Weights>>();
  readonly #rows = new Map<number, Row>();
  /** Rows that ended in the step in progress. */
  readonly #ends: RowEnd[] = [];
  /** Kept for the next batch, to save an allocation each time. */
  #spareCache: KeyValueCache | null = null;
  #running: Promise<void> | null = null;
  #isClosed = false;
  #hasDropped = false;
  #counters = noCounters;

  constructor(config: ModelConfig, program: LaneProgram<Weights>, options: LaneOptions, events: LaneEvents) {
    this.#config = config;
    this.#parameterCount = parameterCount(config);
    this.#program = program;
    this.#options = options;
    this.#events = events;
    this.#prefillCache = new KeyValueCache(config);
    this.#prompts = new PromptCache(options.promptBytesMax);
  }

  get versions(): number[] {
    return [...this.#versions.keys()];
  }

  forget(key: number): void {
    this.#prompts.drop(promptPrefix(key));
  }

  submit(key: number, weights: Weights, rows: readonly NewRow[]): void {
    const version = this.#versions.get(key) ?? { key, weights, waiting: [], batch: null, cache: null };
    this.#versions.set(key, version);
    for (const { id, request } of rows) {
      const row = { id, request, chooser: new TokenChooser(request), sampledCount: 0, isDropped: false };
      this.#rows.set(id, row);
      version.waiting.push(row);
    }
    this.#running ??= this.#run();
  }

  drop(ids: readonly number[]): void {
    for (const id of ids) {
      const row = this.#rows.get(id);
      if (row) row.isDropped = this.#hasDropped = true;
      this.#rows.delete(id);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.drop([...this.#rows.keys()]);
    await this.#running;
  }

  async #run(): Promise<void> {
    // Rows submitted in one turn of the event loop start together.
    await setImmediate();
    while (this.#tidy() && !this.#isClosed) {
      const admitted = this.#admit();
      for (const version of this.#versions.values()) {
        await this.#advance(version, admitted.get(version) ?? []);
        await setImmediate(); // work on this thread has blocked everything else
      }
    }
    // In the same turn as the last check for rows: a later row finds no run and starts a new one.
    this.#running = null;
    this.#report([]);
  }

  /** Removes ended rows; returns whether rows are left. */
  #tidy(): boolean {
    for (const version of this.#versions.values()) {
      version.batch?.removeFinished();
      if (this.#hasDropped) version.waiting = version.waiting.filter(({ isDropped }) => !isDropped);
      if (version.batch?.rowCount === 0) {
        if (version.cache && version.cache.bytes <= this.#options.keyValueBytesMax) this.#spareCache = version.cache;
        version.batch = version.cache = null;
        this.#program.done(version.key);
      }
      if (!version.batch && version.waiting.length === 0) this.#versions.delete(version.key);
    }
    this.#hasDropped = false;
    return this.#versions.size > 0;
  }

  /** Takes the rows that may start now from their lines. */
  #admit(): ReadonlyMap<Version<Weights>, Row[]> {
    const versions = [...this.#versions.values()];
    const lines = versions.map(({ batch, waiting }) => ({ running: sizeOf(batch), waiting }));
    const counts = admit(this.#config, this.#options, lines);
    return new Map(versions.map((version, i) => [version, version.waiting.splice(0, counts[i])]));
  }

  async #advance(version: Version<Weights>, admitted: readonly Row[]): Promise<void> {
    if (!version.batch && admitted.length === 0) return;
    let batch = version.batch;
    try {
      batch ??= this.#openBatch(version, await this.#program.use(version.key, version.weights));
      version.batch = batch;
      if (admitted.length > 0) this.#makeRoom(version, batch, admitted);
      await batch.prefill(admitted);
      this.#trimPrefill();
      await batch.step();
    } catch (error) {
      const ids = [...new Set([...(batch?.rowIds ?? []), ...admitted.map(({ id }) => id)])].filter((id) =>
        this.#rows.has(id),
      );
      this.drop(ids);
      this.#events.fail(ids, error);
    }
    if (batch) this.#count(batch);
    this.#report(this.#ends.splice(0));
  }

  #openBatch(version: Version<Weights>, sessions: DecodeSessions): DecodeBatch {
    const cache = this.#spareCache ?? new KeyValueCache(this.#config, this.#options.keyValueBytesMax);
    this.#spareCache = null;
    version.cache = cache;
    return new DecodeBatch({
      config: this.#config,
      sessions,
      cache,
      prefillCache: this.#prefillCache,
      prompts: this.#prompts,
      limits: this.#options,
      promptPrefix: promptPrefix(version.key),
      isHere: (positions) => positions * this.#parameterCount <= this.#options.workHereMax,
      events: {
        token: (id, choice) => {
          if (this.#rows.has(id)) this.#events.token(id, choice);
        },
        end: (id, finishReason) => {
          if (this.#rows.delete(id)) this.#ends.push({ id, finishReason });
        },
      },
    });
  }

  /** Frees memory that other batches kept from larger sizes, so that it does not add to the needs of this batch. */
  #makeRoom(version: Version<Weights>, batch: DecodeBatch, admitted: readonly Row[]): void {
    const rows = batch.rowCount + admitted.length;
    const length = Math.max(batch.longest, ...admitted.map(({ request }) => rowLengthMax(request)));
    const needed = Math.max(version.cache?.bytes ?? 0, batchBytes(this.#config, { rows, length }));
    const others = [...this.#versions.values()].filter((other) => other !== version && other.cache);
    const kept = others.reduce((sum, { cache }) => sum + cache!.bytes, this.#spareCache?.bytes ?? 0);
    if (needed + kept <= this.#options.keyValueBytesMax) return;
    this.#spareCache = null;
    for (const other of others) other.cache!.trim(Math.max(rowsMin, other.batch?.rowCount ?? 0));
  }

  /** Frees the prefill cache after an unusually long prompt. */
  #trimPrefill(): void {
    const { prefillPositionsMax } = this.#options;
    if (this.#prefillCache.bytes > rowBytes(this.#config, prefillPositionsMax)) this.#prefillCache.trim(0);
  }

  #count(batch: DecodeBatch): void {
    const { sampled, promptTokens, promptTokensComputed } = batch.takeCounts();
    this.#counters = {
      ...this.#counters,
      tokensTotal: this.#counters.tokensTotal + sampled,
      promptTokensTotal: this.#counters.promptTokensTotal + promptTokens,
      promptTokensComputed: this.#counters.promptTokensComputed + promptTokensComputed,
    };
  }

  #report(ends: readonly RowEnd[]): void {
    const versions = [...this.#versions.values()];
    const batches = versions.map(({ batch }) => sizeOf(batch));
    const caches = [this.#prefillCache, this.#spareCache, ...versions.map(({ cache }) => cache)];
    this.#counters = {
      ...this.#counters,
      rowsRunning: batches.reduce((sum, { rows }) => sum + rows, 0),
      rowsWaiting: versions.reduce((sum, { waiting }) => sum + waiting.length, 0),
      keyValueBytesUsed: batches.reduce((sum, size) => sum + batchBytes(this.#config, size), 0),
      keyValueBytesKept: caches.reduce((sum, cache) => sum + (cache?.bytes ?? 0), this.#prompts.bytes),
    };
    this.#events.stepped(ends, this.#counters);
  }
}

function sizeOf(batch: DecodeBatch | null): BatchSize {
  return { rows: batch?.rowCount ?? 0, length: batch?.longest ?? 0 };
}

function promptPrefix(version: number): string {
  return `${version}:`;
}
