import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';

/** Writes a message of protocol buffers field by field: the subset for ONNX and event files. */
export class ProtobufWriter {
  readonly #writer = new BinaryWriter();

  /** An int32, int64 or enum field. */
  int(field: number, value: number | bigint): this {
    this.#writer.tag(field, WireType.Varint).int64(value);
    return this;
  }

  /** A value too large for 32 bits becomes infinite. */
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

  /** The message; call it once. */
  finish(): Uint8Array<ArrayBuffer> {
    return this.#writer.finish();
  }
}
