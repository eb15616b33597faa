import type { ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { changeBetween } from '../core/change-between.ts';
import type { RunSource } from './run-source.ts';

/** Interval between looks at the store while a run has viewers: a folder, or a bucket, which costs money. */
const lookMs = { file: 300, s3: 5_000 } as const;
const askMs = 1_000;
/** Time that the first look waits for the run's own answer. */
const firstAnswerMs = 500;
/** A proxy or a browser gives a silent connection up. */
const stillThereMs = 15_000;

/**
 * Sends news of a run as server-sent events: first its whole position (`run`), then each change to what the viewer last
 * received (`change`). All viewers share one look at the store, and without viewers there is none.
 */
export class Viewers {
  readonly #source: RunSource;
  /** The last text sent to each viewer; '' before the first. */
  readonly #all = new Map<ServerResponse, string>();
  #isLooking = false;
  #waiting = new AbortController();
  #offset = -1;
  #askedAt: number | null = null;
  #asking: Promise<void> | null = null;
  /** A viewer has come who has received nothing yet. */
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
        if (this.#isTroubled) this.#send('change', 'null'); // the trouble is over, even if nothing else is new
        this.#isTroubled = false;
      } catch (error) {
        this.#isTroubled = true;
        this.#tellTrouble(error);
      }
      // A slow store is asked no faster than it answers.
      await sleep(Math.max(every, performance.now() - begunAt), this.#waiting.signal);
    }
    this.#isLooking = false;
  }

  async #look(): Promise<void> {
    const asked = this.#ask();
    const offset = await this.#source.look();
    // A new viewer first waits for the run's own answer, so that the page does not flicker from stopped to running; a
    // slow server delays it only briefly.
    if (this.#isNewHere) await Promise.race([asked, delay(firstAnswerMs, undefined, { ref: false })]);
    this.#isNewHere = false;
    this.#tellAll(JSON.stringify({ offset, overview: await this.#source.overview() }));
    if (performance.now() - this.#saidAt > stillThereMs) this.#send('still', '{}');
    if (offset !== this.#offset) void this.#source.rollouts.bringUpToDate();
    this.#offset = offset;
  }

  /** Asks the run itself: at most once a second, one question at a time. */
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
      // A viewer that does not read is skipped; later it gets everything that is new by then.
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

/** Resolves after that time, or when it is cut short. */
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
