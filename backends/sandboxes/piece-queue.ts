/** Pieces from a writer that waits until its reader has taken one. */
export class PieceQueue implements AsyncIterable<Uint8Array> {
  readonly #pieces: { readonly bytes: Uint8Array; readonly taken: () => void }[] = [];
  #end: { readonly error: unknown } | 'good' | null = null;
  #wake: () => void = () => undefined;

  /** Resolves when the reader has taken it, or reads no more. */
  add(bytes: Uint8Array): Promise<void> {
    if (this.#end !== null) return Promise.resolve();
    return new Promise((resolve) => {
      this.#pieces.push({ bytes, taken: resolve });
      this.#wake();
    });
  }

  end(): void {
    this.#end ??= 'good';
    this.#wake();
  }

  fail(error: unknown): void {
    this.#end ??= { error };
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    try {
      for (;;) {
        const piece = this.#pieces.shift();
        if (piece) {
          yield piece.bytes;
          piece.taken();
        } else if (this.#end === 'good') return;
        else if (this.#end !== null) throw this.#end.error;
        else await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    } finally {
      this.end();
      for (const { taken } of this.#pieces.splice(0)) taken();
    }
  }
}
