import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { safetensorsHeaderBytesMax } from '../limits.ts';

/**
 * Hugging Face's safetensors: 8 bytes header length (little-endian), a JSON header, then raw little-endian tensors.
 * Source: https://github.com/huggingface/safetensors#format
 */
export interface NamedTensor {
  readonly shape: readonly number[];
  readonly data: Float32Array | Int32Array | BigInt64Array;
}

export interface SafetensorsFile {
  readonly tensors: ReadonlyMap<string, NamedTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

const elementBytes = { F32: 4, F16: 2, BF16: 2, I32: 4, I64: 8 } as const;
type ElementCode = keyof typeof elementBytes;

const Entry = z.object({
  dtype: z.string(),
  shape: z.array(z.int().min(0)),
  data_offsets: z.tuple([z.int().min(0), z.int().min(0)]),
});
const Header = z.object({ __metadata__: z.record(z.string(), z.string()).optional() }).catchall(Entry);
type Entry = z.infer<typeof Entry>;

const lengthBytes = 8;

/** Tensors in the order of their names: the same content gives the same bytes. */
export function encodeSafetensors(
  tensors: Readonly<Record<string, NamedTensor>>,
  metadata: Readonly<Record<string, string>> = {},
): Uint8Array {
  const entries = Object.entries(tensors).toSorted(byName);
  const header = encodeHeader(entries, metadata);
  const dataBytes = entries.reduce((total, [, tensor]) => total + tensor.data.byteLength, 0);
  const file = new Uint8Array(lengthBytes + header.length + dataBytes);
  new DataView(file.buffer).setBigUint64(0, BigInt(header.length), true);
  file.set(header, lengthBytes);
  let offset = lengthBytes + header.length;
  for (const [, { data }] of entries) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
    offset += data.byteLength;
  }
  return file;
}

/** `where` names the file in error messages. F16 and BF16 come back as 32-bit floats. */
export function decodeSafetensors(file: Uint8Array, where: string): SafetensorsFile {
  const { header, dataStart } = decodeHeader(file, where);
  const { __metadata__: metadata = {}, ...entries } = header;
  const data = file.subarray(dataStart);
  requireContiguous(Object.values<Entry>(entries as Record<string, Entry>), data.length, where);
  const tensors = new Map<string, NamedTensor>();
  for (const [name, entry] of Object.entries(entries)) {
    tensors.set(name, decodeTensor(name, entry, data, where));
  }
  return { tensors, metadata };
}

function encodeHeader(
  entries: readonly [string, NamedTensor][],
  metadata: Readonly<Record<string, string>>,
): Uint8Array {
  let offset = 0;
  const header: Record<string, unknown> = {};
  const sorted = Object.fromEntries(Object.entries(metadata).toSorted(byName));
  if (Object.keys(sorted).length > 0) header['__metadata__'] = sorted;
  for (const [name, { shape, data }] of entries) {
    requireShape(name, shape, data.length);
    header[name] = { dtype: codeOf(data), shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  // Padded with spaces to 8 bytes, so that the data of an aligned file is aligned.
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20);
  padded.set(text);
  return padded;
}

function requireShape(name: string, shape: readonly number[], length: number): void {
  if (elementCount(shape) === length) return;
  throw new TypeError(`Tensor "${name}" has shape [${shape.join()}] but ${length} elements.`);
}

function decodeHeader(file: Uint8Array, where: string): { header: z.infer<typeof Header>; dataStart: number } {
  if (file.length < lengthBytes) throw damaged(where, `at least ${lengthBytes} bytes`, `${file.length}`);
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
  if (length > safetensorsHeaderBytesMax || lengthBytes + length > file.length) {
    throw damaged(where, `a header within its ${file.length} bytes`, `a header length of ${length}`);
  }
  const dataStart = lengthBytes + length;
  return { header: parseHeader(file.subarray(lengthBytes, dataStart), where), dataStart };
}

function parseHeader(bytes: Uint8Array, where: string): z.infer<typeof Header> {
  let raw: unknown;
  try {
    raw = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    throw damaged(where, 'a JSON header', 'bytes that are not JSON', cause);
  }
  const parsed = Header.safeParse(raw);
  if (!parsed.success) throw damaged(where, 'a safetensors header', z.prettifyError(parsed.error));
  return parsed.data;
}

/** The tensors fill the data exactly, without gaps or overlaps, as the format demands. */
function requireContiguous(entries: readonly Entry[], dataBytes: number, where: string): void {
  let end = 0;
  for (const { data_offsets: offsets } of entries.toSorted(
    (a, b) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1],
  )) {
    if (offsets[0] !== end || offsets[1] < offsets[0]) {
      throw damaged(where, `a tensor that starts at byte ${end}`, `offsets [${offsets.join()}]`);
    }
    end = offsets[1];
  }
  if (end !== dataBytes) throw damaged(where, `${end} bytes of tensors`, `${dataBytes}`);
}

function decodeTensor(name: string, entry: Entry, data: Uint8Array, where: string): NamedTensor {
  const { dtype, shape, data_offsets: offsets } = entry;
  if (!isElementCode(dtype)) {
    const known = Object.keys(elementBytes).join(', ');
    throw new RatchetError('ModelUnsupported', `${where}: tensor "${name}" is ${dtype}; the engine reads ${known}.`);
  }
  const expected = elementCount(shape) * elementBytes[dtype];
  if (offsets[1] - offsets[0] !== expected) {
    throw damaged(where, `${expected} bytes for "${name}" of shape [${shape.join()}]`, `${offsets[1] - offsets[0]}`);
  }
  return { shape, data: decodeElements(dtype, copyOf(data.subarray(offsets[0], offsets[1]))) };
}

/** Aligned and of its own memory. Not `slice`, which for a Buffer is a view. */
function copyOf(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  return new Uint8Array(bytes);
}

function decodeElements(code: ElementCode, bytes: Uint8Array<ArrayBuffer>): NamedTensor['data'] {
  switch (code) {
    case 'F32':
      return new Float32Array(bytes.buffer);
    case 'I32':
      return new Int32Array(bytes.buffer);
    case 'I64':
      return new BigInt64Array(bytes.buffer);
    case 'BF16':
      return fromBrainFloats(new Uint16Array(bytes.buffer));
    case 'F16':
      return Float32Array.from(new Uint16Array(bytes.buffer), fromHalf);
    default:
      return code satisfies never;
  }
}

/** A bfloat16 is the upper half of a float32. */
function fromBrainFloats(halves: Uint16Array): Float32Array {
  const words = Uint32Array.from(halves, (half) => half << 16);
  return new Float32Array(words.buffer);
}

/** IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits. */
function fromHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function codeOf(data: NamedTensor['data']): ElementCode {
  if (data instanceof Float32Array) return 'F32';
  return data instanceof Int32Array ? 'I32' : 'I64';
}

function isElementCode(text: string): text is ElementCode {
  return Object.hasOwn(elementBytes, text);
}

function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** By UTF-16 code units, which no locale changes. */
function byName([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number {
  return a < b ? -1 : Number(a > b);
}

function damaged(where: string, expected: string, received: string, cause?: unknown): RatchetError {
  const message = `${where} is damaged: expected ${expected}, got ${received}. Restore it from another copy.`;
  return new RatchetError('CheckpointDamaged', message, { cause });
}
