import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { stalledReaderMs } from '../limits.ts';
import { errorBody, type HttpError } from './http-error.ts';

/** Server-sent events in OpenAI's manner: one JSON object per event, `[DONE]` at the end. */
export class EventStream {
  readonly #response: ServerResponse;

  constructor(response: ServerResponse) {
    this.#response = response;
    response.on('drain', () => response.setTimeout(0));
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' });
    response.flushHeaders();
  }

  /** The reader lags behind: further data would only fill memory. */
  get isFull(): boolean {
    return this.#response.writableNeedDrain;
  }

  send(event: unknown): void {
    this.#write(JSON.stringify(event));
  }

  sendError(error: HttpError): void {
    this.send(errorBody(error));
  }

  end(): void {
    this.#write('[DONE]');
    this.#response.setTimeout(stalledReaderMs);
    this.#response.end();
  }

  /** Calls back whenever the reader has caught up. */
  onDrain(listener: () => void): void {
    this.#response.on('drain', listener);
  }

  async drained(signal: AbortSignal): Promise<void> {
    if (this.isFull) await once(this.#response, 'drain', { signal });
  }

  #write(data: string): void {
    if (this.#response.destroyed) return;
    const isTaken = this.#response.write(`data: ${data}\n\n`);
    if (!isTaken) this.#response.setTimeout(stalledReaderMs);
  }
}
