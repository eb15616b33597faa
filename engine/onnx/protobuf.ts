/**
 * Writes protocol buffer messages: varint, 32-bit, 64-bit and length-delimited fields, which is all that ONNX and event files need.
 * Source: https://protobuf.dev/programming-guides/encoding
 */
export class ProtobufWriter {
  #bytes: Uint8Array<ArrayBuffer> = new Uint8Array(256);
  #length = 0;

  /** An int32, int64 or enum field. Negative numbers take ten bytes, as the encoding demands. */
  int(field: number, value: number | bigint): this {
    this.#tag(field, 0);
    this.#varint(BigInt.asUintN(64, BigInt(value)));
    return this;
  }

  float(field: number, value: number): this {
    this.#tag(field, 5);
    this.#reserve(4);
    new DataView(this.#bytes.buffer).setFloat32(this.#length, value, true);
    this.#length += 4;
    return this;
  }

  double(field: number, value: number): this {
    this.#tag(field, 1);
    this.#reserve(8);
    new DataView(this.#bytes.buffer).setFloat64(this.#length, value, true);
    this.#length += 8;
    return this;
  }

  bytes(field: number, value: Uint8Array): this {
    this.#tag(field, 2);
    this.#varint(BigInt(value.length));
    this.#reserve(value.length);
    this.#bytes.set(value, this.#length);
    this.#length += value.length;
    return this;
  }

  string(field: number, value: string): this {
    return this.bytes(field, new TextEncoder().encode(value));
  }

  message(field: number, value: ProtobufWriter): this {
    return this.bytes(field, value.finish());
  }

  /** The message so far. The view is valid until the next write. */
  finish(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  #tag(field: number, wireType: 0 | 1 | 2 | 5): void {
    this.#varint(BigInt((field << 3) | wireType));
  }

  #varint(value: bigint): void {
    this.#reserve(10);
    let rest = value;
    while (rest > 127n) {
      this.#bytes[this.#length++] = Number(rest & 127n) | 128;
      rest >>= 7n;
    }
    this.#bytes[this.#length++] = Number(rest);
  }

  #reserve(count: number): void {
    const needed = this.#length + count;
    if (needed <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
  }
}
