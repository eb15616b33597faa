import type { ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import type { RunSource } from './run-source.ts';

/** How often the store is looked at while somebody looks at a run: a folder, or a bucket, which costs money. */
const lookMs = { file: 300, s3: 5_000 } as const;
const askMs = 1_000;
/** So long the first look waits for what the run itself says. */
const firstAnswerMs = 500;
/** A proxy or a browser gives a silent connection up. */
const stillThereMs = 15_000;

/**
 * Whoever looks at a run is told what is new as server-sent events: the whole of where it stands, whenever that has changed. One look at the
 * store is for all of them, and nobody looks while nobody watches.
 */
export class Viewers {
  readonly #source: RunSource;
  readonly #all = new Set<ServerResponse>();
  #isLooking = false;
  #waiting = new AbortController();
  #offset = -1;
  #askedAt: number | null = null;
  #asking: Promise<void> | null = null;
  #said = '';
  #saidAt = 0;

  constructor(source: RunSource) {
    this.#source = source;
  }

  add(response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-store' });
    response.write(`retry: 1000\n\n`);
    this.#all.add(response);
    response.on('close', () => this.#all.delete(response));
    this.#said = ''; // the new one is told, too
    this.#waiting.abort();
    if (!this.#isLooking) void this.#lookOn();
  }

  end(): void {
    for (const response of this.#all) response.end();
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
      } catch (error) {
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
    if (this.#said === '') await Promise.race([asked, delay(firstAnswerMs, undefined, { ref: false })]);
    const said = JSON.stringify({ offset, overview: await this.#source.overview() });
    if (said !== this.#said) this.#send('run', said);
    else if (performance.now() - this.#saidAt > stillThereMs) this.#send('still', '{}');
    this.#said = said;
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

  #send(event: string, data: string): void {
    this.#saidAt = performance.now();
    // Who does not read is not written to: the next event says all of it again.
    for (const response of this.#all)
      if (!response.writableNeedDrain) response.write(`event: ${event}\ndata: ${data}\n\n`);
  }
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
