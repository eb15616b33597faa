const newline = 0x0a;

/** Cuts a stream of bytes into lines of UTF-8. */
export class LineReader {
  readonly #bytesMax: number;
  readonly #onLine: (line: string) => void;
  #parts: Buffer[] = [];
  #held = 0;

  constructor(bytesMax: number, onLine: (line: string) => void) {
    this.#bytesMax = bytesMax;
    this.#onLine = onLine;
  }

  /** Throws for a line that is too long, and errors of `onLine`. */
  add(chunk: Buffer): void {
    let start = 0;
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      this.#onLine(this.#line(chunk.subarray(start, end)));
      start = end + 1;
    }
    if (start === chunk.length) return;
    this.#parts.push(start === 0 ? chunk : chunk.subarray(start));
    this.#held += chunk.length - start;
    if (this.#held > this.#bytesMax) throw new Error(`a line of more than ${this.#bytesMax} bytes`);
  }

  #line(last: Buffer): string {
    if (this.#parts.length === 0) return last.toString('utf8');
    const whole = Buffer.concat([...this.#parts, last]);
    this.#parts = [];
    this.#held = 0;
    return whole.toString('utf8');
  }
}
