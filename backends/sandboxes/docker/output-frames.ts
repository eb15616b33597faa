/** Output of an exec as the Engine API sends it: frames of a stream's number, three zeros, a length, and its bytes. */
export class OutputFrames {
  #held: Buffer = Buffer.alloc(0);

  /** The frames that are whole with these bytes. */
  add(bytes: Buffer): readonly { readonly name: 'out' | 'err'; readonly bytes: Buffer }[] {
    this.#held = this.#held.length === 0 ? bytes : Buffer.concat([this.#held, bytes]);
    const frames: { name: 'out' | 'err'; bytes: Buffer }[] = [];
    while (this.#held.length >= 8) {
      const length = this.#held.readUInt32BE(4);
      if (this.#held.length < 8 + length) break;
      frames.push({ name: this.#held[0] === 2 ? 'err' : 'out', bytes: this.#held.subarray(8, 8 + length) });
      this.#held = this.#held.subarray(8 + length);
    }
    return frames;
  }
}
