/**
 * The beginning of a GGUF file of version 3, little-endian: named values, and the place of each tensor. Source:
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */

/** A value with the type that the file says it has: readers look for one type under a name. */
export type TypedValue =
  | { readonly u32: number }
  | { readonly f32: number }
  | { readonly bool: boolean }
  | { readonly text: string }
  | { readonly i32s: readonly number[] }
  | { readonly f32s: readonly number[] }
  | { readonly bools: readonly boolean[] }
  | { readonly texts: readonly string[] };

export interface WrittenTensor {
  readonly name: string;
  /** Rows first, as in PyTorch. */
  readonly shape: readonly number[];
  /** Code of `ggml_type`. */
  readonly type: number;
  /** Size of the data, without the padding before the next tensor. */
  readonly bytes: number;
}

const tensorAlignment = 32;

const [version, textType, listType] = [3, 8, 9];

/**
 * Ends with padding, so that the first tensor follows at once; every tensor begins at a multiple of {@link
 * tensorAlignment}.
 */
export function encodeGgufHeader(
  values: ReadonlyMap<string, TypedValue>,
  tensors: readonly WrittenTensor[],
): Uint8Array {
  const parts: Uint8Array[] = [Buffer.from('GGUF'), u32(version), u64(tensors.length), u64(values.size)];
  for (const [name, value] of values) parts.push(text(name), ...encodeValue(value));
  let offset = 0;
  for (const { name, shape, type, bytes } of tensors) {
    parts.push(text(name), u32(shape.length), ...shape.toReversed().map(u64), u32(type), u64(offset));
    offset += aligned(bytes);
  }
  const length = parts.reduce((total, part) => total + part.length, 0);
  return Buffer.concat(parts, aligned(length));
}

export function aligned(bytes: number): number {
  return Math.ceil(bytes / tensorAlignment) * tensorAlignment;
}

function encodeValue(value: TypedValue): Uint8Array[] {
  if ('u32' in value) return [u32(4), u32(value.u32)];
  if ('f32' in value) return [u32(6), f32(value.f32)];
  if ('bool' in value) return [u32(7), bool(value.bool)];
  if ('text' in value) return [u32(textType), text(value.text)];
  if ('i32s' in value) return list(5, value.i32s.map(i32));
  if ('bools' in value) return list(7, value.bools.map(bool));
  if ('f32s' in value) return list(6, value.f32s.map(f32));
  return list(textType, value.texts.map(text));
}

const bool = (value: boolean): Uint8Array => Uint8Array.of(value ? 1 : 0);

function list(of: number, entries: readonly Uint8Array[]): Uint8Array[] {
  return [u32(listType), u32(of), u64(entries.length), ...entries];
}

function text(value: string): Uint8Array {
  const bytes = Buffer.from(value, 'utf8');
  return Buffer.concat([u64(bytes.length), bytes]);
}

function u32(value: number): Uint8Array {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function i32(value: number): Uint8Array {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(value);
  return bytes;
}

function f32(value: number): Uint8Array {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(value);
  return bytes;
}

function u64(value: number): Uint8Array {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}
