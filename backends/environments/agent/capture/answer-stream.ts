import type { ServerResponse } from 'node:http';
import type { ApiForm, StreamEvent } from './model-call.ts';

/** Between signs of life while the model speaks: clients and proxies end connections that are silent for a minute. */
const aliveMs = 10_000;

/**
 * A stream of events. It begins with its first event, or with a comment if the model takes long: until then an error
 * has a status of its own.
 */
export class AnswerStream {
  readonly #response: ServerResponse;
  readonly #form: ApiForm;
  readonly #outward: (text: string) => string;
  readonly #alive: NodeJS.Timeout;

  /** `outward` makes of a text what the program gets. */
  constructor(response: ServerResponse, form: ApiForm, outward: (text: string) => string) {
    this.#response = response;
    this.#form = form;
    this.#outward = outward;
    this.#alive = setInterval(() => this.#write(': the model is still speaking\n\n'), aliveMs);
    response.once('close', () => this.stop());
  }

  send(events: readonly StreamEvent[]): void {
    this.stop();
    const ending = this.#form.ending === undefined ? '' : `data: ${this.#form.ending}\n\n`;
    this.#write(this.#outward(events.map(textOf).join('')) + ending);
    this.#response.end();
  }

  stop(): void {
    clearInterval(this.#alive);
  }

  #write(text: string): void {
    if (this.#response.destroyed) return;
    if (!this.#response.headersSent)
      this.#response.writeHead(200, {
        'content-type': 'text/event-stream; charset=utf-8',
        'cache-control': 'no-cache',
      });
    this.#response.write(text);
  }
}

function textOf({ event, data }: StreamEvent): string {
  return `${event === undefined ? '' : `event: ${event}\n`}data: ${JSON.stringify(data)}\n\n`;
}
