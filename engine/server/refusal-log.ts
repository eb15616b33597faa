import { refusalLinesPerSecondMax } from '../limits.ts';
import { shortened } from './json.ts';

/** A line per refused request, as long as they are few: a log is a file, and clients do not get to fill the disk. */
export class RefusalLog {
  readonly #log: (line: string) => void;
  #second = 0;
  #linesInSecond = 0;
  #unlogged = 0;

  constructor(log: (line: string) => void) {
    this.#log = log;
  }

  add(method: string | undefined, url: string | undefined, error: unknown): void {
    const second = Math.floor(performance.now() / 1000);
    if (second !== this.#second) {
      this.#second = second;
      this.#linesInSecond = 0;
    }
    if (++this.#linesInSecond > refusalLinesPerSecondMax) {
      this.#unlogged++;
      return;
    }
    const before = this.#unlogged > 0 ? ` (${this.#unlogged} more before)` : '';
    this.#unlogged = 0;
    const message = error instanceof Error ? error.message : String(error);
    this.#log(`refused ${method} ${shortened(url ?? '')}: ${shortened(message, 500)}${before}`);
  }
}
