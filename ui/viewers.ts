import type { ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { changeBetween } from '../core/change-between.ts';
import type { RunSource } from './run-source.ts';

/** How often the store is looked at while somebody looks at a run: a folder, or a bucket, which costs money. */
const lookMs = { file: 300, s3: 5_000 } as const;
const askMs = 1_000;
/** So long the first look waits for what the run itself says. */
const firstAnswerMs = 500;
/** A proxy or a browser gives a silent connection up. */
const stillThereMs = 15_000;

/**
 * Whoever looks at a run is told what is new as server-sent events: first the whole of where it stands (`run`), then whenever that has changed what
 * makes it of what they were told before (`change`). One look at the store is for all of them, and nobody looks while nobody watches.
 */
export class Viewers {
  readonly #source: RunSource;
  /** What each was told last; '' where nothing yet. */
  readonly #all = new Map<ServerResponse, string>();
  #isLooking = false;
  #waiting = new AbortController();
  #offset = -1;
  #askedAt: number | null = null;
  #asking: Promise<void> | null = null;
  /** Somebody has come who was told nothing yet. */
  #isNewHere = false;
  #saidAt = 0;
  /** The last look at the store failed. */
  #isTroubled = false;

  constructor(source: RunSource) {
    this.#source = source;
  }

  add(response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-store' });
    response.write(`retry: 1000\n\n`);
    this.#all.set(response, '');
    response.on('close', () => this.#all.delete(response));
    this.#isNewHere = true;
    this.#waiting.abort();
    if (!this.#isLooking) void this.#lookOn();
  }

  end(): void {
    for (const response of this.#all.keys()) response.end();
    this.#all.clear();
    this.#waiting.abort();
  }

  async #lookOn(): Promise<void> {
    this.#isLooking = true;
    const every = this.#source.place.store.startsWith('file:') ? lookMs.file : lookMs.s3;
    while (this.#all.size > 0) {
      const begunAt = performance.now();
      this.#waiting = new AbortController();
      try {
        await this.#look();
        if (this.#isTroubled) this.#send('change', 'null'); // it is over, though nothing else is new
        this.#isTroubled = false;
      } catch (error) {
        this.#isTroubled = true;
        this.#tellTrouble(error);
      }
      // Of a store that is slow to answer no more is asked than it answers.
      await sleep(Math.max(every, performance.now() - begunAt), this.#waiting.signal);
    }
    this.#isLooking = false;
  }

  async #look(): Promise<void> {
    const asked = this.#ask();
    const offset = await this.#source.look();
    // Whoever has just come is not told first that the run stands still, and then that it does not; a server that is slow keeps nobody.
    if (this.#isNewHere) await Promise.race([asked, delay(firstAnswerMs, undefined, { ref: false })]);
    this.#isNewHere = false;
    this.#tellAll(JSON.stringify({ offset, overview: await this.#source.overview() }));
    if (performance.now() - this.#saidAt > stillThereMs) this.#send('still', '{}');
    if (offset !== this.#offset) void this.#source.rollouts.bringUpToDate();
    this.#offset = offset;
  }

  /** What the run itself says is looked at when it is there: once a second, and one question at a time. */
  #ask(): Promise<void> {
    const isDue = this.#askedAt === null || performance.now() - this.#askedAt > askMs;
    if (this.#asking === null && isDue) {
      this.#askedAt = performance.now();
      this.#asking = this.#source
        .askRun()
        .catch((error: unknown) => this.#tellTrouble(error))
        .finally(() => (this.#asking = null));
    }
    return this.#asking ?? Promise.resolve();
  }

  #tellTrouble(error: unknown): void {
    this.#send('trouble', JSON.stringify({ message: error instanceof Error ? error.message : String(error) }));
  }

  #tellAll(now: string): void {
    const changes = new Map<string, string>();
    const since = (before: string): string => {
      const known = changes.get(before) ?? JSON.stringify(changeBetween(JSON.parse(before), JSON.parse(now)));
      changes.set(before, known);
      return known;
    };
    for (const [response, before] of this.#all) {
      // Who does not read is not written to, and is told later what is new by then.
      if (before === now || response.writableNeedDrain) continue;
      this.#saidAt = performance.now();
      response.write(before === '' ? eventOf('run', now) : eventOf('change', since(before)));
      this.#all.set(response, now);
    }
  }

  #send(event: string, data: string): void {
    this.#saidAt = performance.now();
    for (const response of this.#all.keys()) if (!response.writableNeedDrain) response.write(eventOf(event, data));
  }
}

function eventOf(event: string, data: string): string {
  return `event: ${event}\ndata: ${data}\n\n`;
}

/** Until then, or until it is cut short. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
