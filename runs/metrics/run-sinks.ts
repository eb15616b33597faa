import { setTimeout as delay } from 'node:timers/promises';
import { layout } from '../layout.ts';
import { encodeJson } from '../../store/objects.ts';
import type { Store } from '../../store/types.ts';
import { MetricsFeed } from './metrics-feed.ts';
import type { MetricsSink, NumberedRow, SinkState, SinkStates } from '../../core/rl/metric-rows.ts';
import { sinkStatesIn } from './sink-states.ts';

/** Rows given to a sink at once. */
const rowsAtOnce = 200;
/** How long a look at the metrics waits for the sinks. */
const patienceMs = 500;
/** Delay before a failing sink is tried again; it grows. */
const retryMs = { first: 2_000, most: 5 * 60_000 };

interface Fed {
  readonly sink: MetricsSink;
  /** The number of the next row; null until the sink was opened. */
  next: number | null;
  noted: number;
  failing: string | null;
  failures: number;
  retryAt: number;
  /** The feed under way; null when idle. */
  busy: Promise<void> | null;
}

/** Feeds the sinks of one run from its metrics. A failing sink delays neither the run nor the other sinks. */
export class RunSinks {
  readonly #store: Store;
  readonly #feed: MetricsFeed;
  readonly #fed: Fed[];
  readonly #log: (line: string) => void;
  #written = '';
  #isDone = false;

  constructor(store: Store, sinks: readonly MetricsSink[], log: (line: string) => void) {
    this.#store = store;
    this.#feed = new MetricsFeed(store);
    this.#log = log;
    this.#fed = sinks.map((sink) => ({
      sink,
      next: null,
      noted: 0,
      failing: null,
      failures: 0,
      retryAt: 0,
      busy: null,
    }));
  }

  /** Reads the progress that another process recorded for the sinks. */
  async restore(): Promise<void> {
    const states = await readSinkStates(this.#store);
    for (const fed of this.#fed) fed.noted = states[fed.sink.name]?.next ?? 0;
  }

  /** Looks for new rows and sends them; returns those that are new to this process. */
  async advance(): Promise<readonly NumberedRow[]> {
    const fresh = await this.#feed.pull();
    // A slow sink (its client is being installed) continues in the background, and delays no other.
    const working = this.#fed.map((fed) => {
      fed.busy ??= this.#feedOne(fed).finally(() => (fed.busy = null));
      return fed.busy;
    });
    await Promise.race([Promise.all(working), delay(patienceMs, undefined, { ref: false })]);
    this.#feed.letGo(Math.min(this.#feed.length, ...this.#fed.map(({ next, noted }) => next ?? noted)));
    await this.#write();
    return fresh;
  }

  get states(): SinkStates {
    const states = this.#fed.map(({ sink, next, noted, failing }): [string, SinkState] => [
      sink.name,
      {
        next: next ?? noted,
        rows: this.#feed.length,
        place: sink.place(),
        failing,
        isDone: this.#isDone && failing === null,
      },
    ]);
    return Object.fromEntries(states);
  }

  /** Whether every sink that works has every row there is. */
  get isUpToDate(): boolean {
    return this.#fed.every(({ next, busy }) => busy === null && next === this.#feed.length);
  }

  /** Sends what is left and closes the sinks. `isRunOver`: no further rows will come. */
  async close(isRunOver: boolean): Promise<void> {
    await Promise.all(
      this.#fed.map(async ({ sink, busy }) => {
        await busy;
        await sink.close(isRunOver).catch((error: unknown) => this.#log(`${sink.name}: ${reasonOf(error)}`));
      }),
    );
    this.#isDone = isRunOver && this.isUpToDate;
    await this.#write();
  }

  async #feedOne(fed: Fed): Promise<void> {
    const { sink } = fed;
    if (performance.now() < fed.retryAt) return;
    try {
      fed.next ??= await sink.open(fed.noted);
      for (;;) {
        const rows = await this.#feed.from(fed.next, rowsAtOnce);
        if (rows.length === 0) break;
        await sink.send(rows);
        fed.next = rows.at(-1)!.number + 1;
      }
      fed.next = Math.max(fed.next, this.#feed.length); // rows that are in no file any more
      if (fed.failing !== null) this.#log(`${sink.name}: works again`);
      [fed.failing, fed.failures] = [null, 0];
    } catch (error) {
      const reason = reasonOf(error);
      fed.noted = fed.next ?? fed.noted;
      fed.next = null; // it is asked for its progress again
      if (fed.failing !== reason) this.#log(`${sink.name}: ${reason}; tried again later, training continues`);
      fed.failing = reason;
      fed.retryAt = performance.now() + Math.min(retryMs.most, retryMs.first * 2 ** fed.failures);
      fed.failures += 1;
    }
  }

  async #write(): Promise<void> {
    const { states } = this;
    const text = JSON.stringify(states);
    if (text === this.#written || Object.values(states).every(({ rows }) => rows === 0)) return;
    await this.#store.put(layout.sinks(), encodeJson(states));
    this.#written = text;
  }
}

/** Progress of a run's sinks; empty without any. */
export async function readSinkStates(store: Store): Promise<SinkStates> {
  const bytes = await store.read(layout.sinks());
  return bytes ? sinkStatesIn(bytes, layout.sinks()) : {};
}

function reasonOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).replaceAll(/\s+/g, ' ').trim();
}
