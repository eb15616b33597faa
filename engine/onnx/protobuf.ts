import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';

/** A message of protocol buffers, field by field: what ONNX and event files need of them. */
export class ProtobufWriter {
  readonly #writer = new BinaryWriter();

  /** An int32, int64 or enum field. */
  int(field: number, value: number | bigint): this {
    this.#writer.tag(field, WireType.Varint).int64(value);
    return this;
  }

  /** What is too large for 32 bits is infinite there. */
  float(field: number, value: number): this {
    this.#writer.tag(field, WireType.Bit32).float(Math.fround(value));
    return this;
  }

  double(field: number, value: number): this {
    this.#writer.tag(field, WireType.Bit64).double(value);
    return this;
  }

  bytes(field: number, value: Uint8Array): this {
    this.#writer.tag(field, WireType.LengthDelimited).bytes(value);
    return this;
  }

  string(field: number, value: string): this {
    this.#writer.tag(field, WireType.LengthDelimited).string(value);
    return this;
  }

  message(field: number, value: ProtobufWriter): this {
    return this.bytes(field, value.finish());
  }

  /** The message; asked for once. */
  finish(): Uint8Array<ArrayBuffer> {
    return this.#writer.finish();
  }
}
