/**
 * Writes MessagePack piece by piece. `@msgpack/msgpack` encodes one whole value into one buffer from arrays of boxed numbers: a batch would be
 * in memory three times. These are the few types that prime-rl's transport has, from columns of any kind, in the bytes that msgspec writes.
 */
export class MsgpackWriter {
  readonly #sink: (bytes: Uint8Array) => Promise<void> | void;
  readonly #bytes = Buffer.allocUnsafe(chunkBytes);
  #at = 0;

  /** `sink` takes finished pieces, whose memory is used again. */
  constructor(sink: (bytes: Uint8Array) => Promise<void> | void) {
    this.#sink = sink;
  }

  async arrayHeader(length: number): Promise<void> {
    await this.#room(5);
    if (length < 16) this.#at = this.#bytes.writeUInt8(0x90 | length, this.#at);
    else if (length < 0x10000) this.#at = this.#bytes.writeUInt16BE(length, this.#bytes.writeUInt8(0xdc, this.#at));
    else this.#at = this.#bytes.writeUInt32BE(length, this.#bytes.writeUInt8(0xdd, this.#at));
  }

  async nil(): Promise<void> {
    await this.#room(1);
    this.#at = this.#bytes.writeUInt8(0xc0, this.#at);
  }

  /** Whole numbers from 0 to 2³² − 1. */
  async wholes(values: ArrayLike<number>): Promise<void> {
    await this.#each(values.length, 5, (at, i) => {
      const value = values[i]!;
      if (value < 0x80) return this.#bytes.writeUInt8(value, at);
      if (value < 0x100) return this.#bytes.writeUInt8(value, this.#bytes.writeUInt8(0xcc, at));
      if (value < 0x10000) return this.#bytes.writeUInt16BE(value, this.#bytes.writeUInt8(0xcd, at));
      return this.#bytes.writeUInt32BE(value, this.#bytes.writeUInt8(0xce, at));
    });
  }

  async floats(values: ArrayLike<number>): Promise<void> {
    await this.#each(values.length, 9, (at, i) => {
      this.#bytes[at] = 0xcb;
      return this.#bytes.writeDoubleBE(values[i]!, at + 1);
    });
  }

  async flags(values: ArrayLike<number | boolean>): Promise<void> {
    await this.#each(values.length, 1, (at, i) => {
      this.#bytes[at] = values[i] ? 0xc3 : 0xc2;
      return at + 1;
    });
  }

  /** The same short text so many times. */
  async texts(text: string, times: number): Promise<void> {
    const encoded = Buffer.from(text, 'utf8');
    if (encoded.length >= 32) throw new RangeError(`${text} is longer than 31 bytes`);
    const whole = Buffer.concat([Buffer.of(0xa0 | encoded.length), encoded]);
    await this.#each(times, whole.length, (at) => at + whole.copy(this.#bytes, at));
  }

  async end(): Promise<void> {
    await this.#flush();
  }

  /** Writes a run of values, each in so many bytes at most. */
  async #each(count: number, bytesMax: number, write: (at: number, i: number) => number): Promise<void> {
    for (let i = 0; i < count;) {
      await this.#room(bytesMax);
      const end = Math.min(count, i + Math.floor((chunkBytes - this.#at) / bytesMax));
      let at = this.#at;
      for (; i < end; i++) at = write(at, i);
      this.#at = at;
    }
  }

  async #room(bytes: number): Promise<void> {
    if (this.#at + bytes > chunkBytes) await this.#flush();
  }

  async #flush(): Promise<void> {
    const end = this.#at;
    this.#at = 0;
    if (end > 0) await this.#sink(this.#bytes.subarray(0, end));
  }
}

const chunkBytes = 1024 * 1024;
