import { damagedFile } from '../model/safetensors.ts';
import { ggufEntriesMax, ggufListedMax, ggufTensorsMax } from '../limits.ts';

/**
 * The part of a GGUF file before its weights: named values, and the shape, type and start of each tensor. Versions 2
 * and 3, little-endian. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
export interface GgufHeader {
  readonly values: ReadonlyMap<string, GgufValue>;
  readonly tensors: ReadonlyMap<string, GgufTensor>;
}

/** 64-bit integers are numbers if a number holds them exactly. */
export type GgufValue = number | bigint | boolean | string | readonly GgufValue[];

export interface GgufTensor {
  /** Rows first, as in PyTorch. The file stores its dimensions in reverse. */
  readonly shape: readonly number[];
  /** Code of `ggml_type`; `quants.ts` names the supported ones. */
  readonly type: number;
  /** Byte offset in the file. */
  readonly start: number;
}

/** The header continues beyond the given bytes. */
export class HeaderIsLonger extends Error {}

const magic = 0x4655_4747; // "GGUF"
const defaultAlignment = 32;
const dimensionsMax = 4;

/**
 * Reads the beginning of a file. Throws {@link HeaderIsLonger} if it ends too soon, and `CheckpointDamaged` for a file
 * that is no GGUF.
 */
export function decodeGgufHeader(beginning: Uint8Array, where: string): GgufHeader {
  const reader = new HeaderReader(beginning, where);
  const [found, version] = [reader.u32(), reader.u32()];
  if (found !== magic) throw damagedFile(where, 'a GGUF file, which begins with "GGUF"', `0x${found.toString(16)}`);
  if (version !== 2 && version !== 3) throw damagedFile(where, 'GGUF version 2 or 3, little-endian', String(version));
  const tensorCount = reader.count('tensors', ggufTensorsMax);
  const valueCount = reader.count('values', ggufEntriesMax);
  const values = new Map<string, GgufValue>();
  for (let i = 0; i < valueCount; i++) {
    const name = reader.text();
    if (values.has(name)) throw damagedFile(where, `one value "${name}"`, 'two');
    values.set(name, reader.value(reader.u32()));
  }
  const described = new Map<string, Omit<GgufTensor, 'start'> & { readonly offset: number }>();
  for (let i = 0; i < tensorCount; i++) {
    const name = reader.text();
    if (described.has(name)) throw damagedFile(where, `one tensor "${name}"`, 'two');
    const rank = reader.u32();
    if (rank > dimensionsMax)
      throw damagedFile(where, `at most ${dimensionsMax} dimensions of "${name}"`, String(rank));
    const shape = Array.from({ length: rank }, () => reader.size()).reverse();
    described.set(name, { shape, type: reader.u32(), offset: reader.size() });
  }
  const alignment = Number(values.get('general.alignment') ?? defaultAlignment);
  if (!Number.isSafeInteger(alignment) || alignment < 1)
    throw damagedFile(where, 'an alignment ≥ 1', String(alignment));
  const begin = Math.ceil(reader.position / alignment) * alignment;
  return {
    values,
    tensors: new Map(
      [...described].map(([name, { offset, ...tensor }]) => [name, { ...tensor, start: begin + offset }]),
    ),
  };
}

/** Sizes of the number types by their codes, and how each is read. */
const numbers: Readonly<Record<number, readonly [bytes: number, read: (view: DataView, at: number) => number]>> = {
  0: [1, (view, at) => view.getUint8(at)],
  1: [1, (view, at) => view.getInt8(at)],
  2: [2, (view, at) => view.getUint16(at, true)],
  3: [2, (view, at) => view.getInt16(at, true)],
  4: [4, (view, at) => view.getUint32(at, true)],
  5: [4, (view, at) => view.getInt32(at, true)],
  6: [4, (view, at) => view.getFloat32(at, true)],
  12: [8, (view, at) => view.getFloat64(at, true)],
};
const [booleanType, textType, listType, unsigned64, signed64] = [7, 8, 9, 10, 11];

class HeaderReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #where: string;
  readonly #decoder = new TextDecoder('utf-8');
  position = 0;
  /** Values in all lists so far. They are bounded because in memory one byte may take eight, and a text forty. */
  #listed = 0;

  constructor(bytes: Uint8Array, where: string) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#where = where;
  }

  u32(): number {
    return this.#view.getUint32(this.#take(4), true);
  }

  /** A 64-bit count. Throws when it exceeds what a JavaScript number holds exactly. */
  size(): number {
    const size = this.#view.getBigUint64(this.#take(8), true);
    if (size > BigInt(Number.MAX_SAFE_INTEGER)) throw damagedFile(this.#where, 'a size below 2^53', String(size));
    return Number(size);
  }

  count(what: string, max: number): number {
    const count = this.size();
    if (count > max) throw damagedFile(this.#where, `at most ${max} ${what}`, String(count));
    return count;
  }

  text(): string {
    const length = this.size();
    const at = this.#take(length);
    return this.#decoder.decode(this.#bytes.subarray(at, at + length));
  }

  value(type: number, depth = 0): GgufValue {
    const number = numbers[type];
    if (number) return number[1](this.#view, this.#take(number[0]));
    if (type === booleanType) return this.#view.getUint8(this.#take(1)) !== 0;
    if (type === textType) return this.text();
    if (type === unsigned64) return exact(this.#view.getBigUint64(this.#take(8), true));
    if (type === signed64) return exact(this.#view.getBigInt64(this.#take(8), true));
    if (type !== listType || depth > 1)
      throw damagedFile(this.#where, 'a value of a type that GGUF has', `type ${type}`);
    const [of, length] = [this.u32(), this.count('entries of a list', ggufEntriesMax)];
    this.#listed += length;
    if (this.#listed > ggufListedMax)
      throw damagedFile(this.#where, `at most ${ggufListedMax} entries of all lists`, `${this.#listed} and more`);
    return Array.from({ length }, () => this.value(of, depth + 1));
  }

  #take(count: number): number {
    const at = this.position;
    if (at + count > this.#bytes.length) throw new HeaderIsLonger(`${this.#where}: ${at + count} bytes and more`);
    this.position += count;
    return at;
  }
}

function exact(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
