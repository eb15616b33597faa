/** The source ended before the bytes that were asked for. */
export class CutOff extends Error {}

/** Reads a stream of bytes in the pieces that a format has, and holds no more of it than the last chunk. */
export class ByteReader {
  readonly #source: AsyncIterator<Uint8Array>;
  #held: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** The next bytes, which stay; fewer at the end. */
  async peek(length: number): Promise<Buffer> {
    while (this.#held.length < length) {
      const chunk = await this.#next();
      if (chunk === null) break;
      this.#held = Buffer.concat([this.#held, chunk]);
    }
    return this.#held.subarray(0, length);
  }

  async take(length: number): Promise<Buffer> {
    const bytes = await this.peek(length);
    if (bytes.length < length) throw new CutOff();
    this.#held = this.#held.subarray(length);
    return bytes;
  }

  async skip(length: number): Promise<void> {
    for await (const _ of this.stream(length));
  }

  async *stream(length: number): AsyncGenerator<Buffer> {
    for (let left = length; left > 0;) {
      if (this.#held.length === 0) {
        const chunk = await this.#next();
        if (chunk === null) throw new CutOff();
        this.#held = chunk;
      }
      const part = this.#held.subarray(0, left);
      this.#held = this.#held.subarray(part.length);
      left -= part.length;
      if (part.length > 0) yield part;
    }
  }

  /** Everything that is left. */
  async *rest(): AsyncGenerator<Buffer> {
    for (;;) {
      const chunk = this.#held.length > 0 ? this.#held : await this.#next();
      this.#held = Buffer.alloc(0);
      if (chunk === null) return;
      if (chunk.length > 0) yield chunk;
    }
  }

  /** Ends the source, whatever is left of it. */
  async close(): Promise<void> {
    await this.#source.return?.();
  }

  async #next(): Promise<Buffer | null> {
    const { done, value } = await this.#source.next();
    return done === true ? null : Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  }
}
