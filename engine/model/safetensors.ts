import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { safetensorsHeaderBytesMax, safetensorsTensorsMax } from '../limits.ts';
import { fromBrainFloats, fromHalfFloats } from './half-floats.ts';

/**
 * Hugging Face's safetensors: 8 bytes header length (little-endian), a JSON header, then raw little-endian tensors.
 * Source: https://github.com/huggingface/safetensors#format
 */
export interface NamedTensor {
  readonly shape: readonly number[];
  readonly data: Float32Array | Int32Array | BigInt64Array;
}

interface SafetensorsFile {
  readonly tensors: ReadonlyMap<string, NamedTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

/** A tensor without its data: all that a header says of it. */
export interface TensorOutline {
  readonly shape: readonly number[];
  readonly code: ElementCode;
}

/** In which precision floats are written, by PyTorch's names. Reading gives 32-bit floats whatever the file holds. */
export type FloatType = 'float32' | 'bfloat16' | 'float16';

const elementBytes = { F32: 4, F16: 2, BF16: 2, I32: 4, I64: 8 } as const;
type ElementCode = keyof typeof elementBytes;
const floatCodes = { float32: 'F32', bfloat16: 'BF16', float16: 'F16' } as const;

/** A tensor's place in the file: bytes [start, end) from its beginning. */
export interface TensorEntry {
  readonly code: ElementCode;
  readonly shape: readonly number[];
  readonly start: number;
  readonly end: number;
}

export interface SafetensorsHeader {
  readonly entries: ReadonlyMap<string, TensorEntry>;
  readonly metadata: Readonly<Record<string, string>>;
}

const Entry = z.object({
  dtype: z.string(),
  shape: z.array(z.int().min(0)),
  data_offsets: z.tuple([z.int().min(0), z.int().min(0)]),
});
const Header = z.object({ __metadata__: z.record(z.string(), z.string()).optional() }).catchall(Entry);
type Entry = z.infer<typeof Entry>;

/** Bytes before the header: its length. */
export const headerLengthBytes = 8;

/** Tensors in the order of their names: the same content gives the same bytes. */
export function encodeSafetensors(
  tensors: Readonly<Record<string, NamedTensor>>,
  metadata: Readonly<Record<string, string>> = {},
): Uint8Array {
  const names = Object.keys(tensors).toSorted(byCodeUnits);
  const header = encodeHeader(
    names.map((name) => [name, tensors[name]!]),
    metadata,
  );
  const dataBytes = names.reduce((total, name) => total + tensors[name]!.data.byteLength, 0);
  const file = new Uint8Array(header.length + dataBytes);
  file.set(header);
  let offset = header.length;
  for (const name of names) {
    const { data } = tensors[name]!;
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
    offset += data.byteLength;
  }
  return file;
}

/** `where` names the file in error messages. F16 and BF16 come back as 32-bit floats. */
export function decodeSafetensors(file: Uint8Array, where: string): SafetensorsFile {
  const headerBytes = headerLength(file, file.length, where);
  const { entries, metadata } = decodeHeader(file.subarray(headerLengthBytes, headerBytes), file.length, where);
  const tensors = new Map<string, NamedTensor>();
  for (const [name, { code, shape, start, end }] of entries) {
    tensors.set(name, { shape, data: decodeElements(code, copyOf(file.subarray(start, end))) });
  }
  return { tensors, metadata };
}

/**
 * The file up to its data, for tensors in the order they will follow: header length and header, padded with spaces to
 * 8 bytes, so that the data of an aligned file is aligned. Floats are announced as `floatType`.
 */
export function encodeHeader(
  tensors: readonly (readonly [string, NamedTensor | TensorOutline])[],
  metadata: Readonly<Record<string, string>>,
  floatType: FloatType = 'float32',
): Uint8Array {
  let offset = 0;
  const header: Record<string, unknown> = {};
  const sorted = Object.fromEntries(Object.entries(metadata).toSorted(([a], [b]) => byCodeUnits(a, b)));
  if (Object.keys(sorted).length > 0) header['__metadata__'] = sorted;
  for (const [name, tensor] of tensors) {
    const { shape } = tensor;
    if ('data' in tensor) requireShape(name, shape, tensor.data.length);
    const dtype = 'data' in tensor ? codeOf(tensor.data, floatType) : tensor.code;
    const end = offset + elementCount(shape) * elementBytes[dtype];
    header[name] = { dtype, shape, data_offsets: [offset, end] };
    offset = end;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const file = new Uint8Array(headerLengthBytes + Math.ceil(text.length / 8) * 8).fill(0x20);
  new DataView(file.buffer).setBigUint64(0, BigInt(file.length - headerLengthBytes), true);
  file.set(text, headerLengthBytes);
  return file;
}

/** Bytes before the data, from the file's first bytes and its size. */
export function headerLength(beginning: Uint8Array, fileBytes: number, where: string): number {
  if (fileBytes < headerLengthBytes) throw damagedFile(where, `at least ${headerLengthBytes} bytes`, `${fileBytes}`);
  const length = Number(new DataView(beginning.buffer, beginning.byteOffset).getBigUint64(0, true));
  if (length > safetensorsHeaderBytesMax || headerLengthBytes + length > fileBytes) {
    throw damagedFile(where, `a header within its ${fileBytes} bytes`, `a header length of ${length}`);
  }
  return headerLengthBytes + length;
}

/** `header` is the JSON alone. Throws unless every tensor is within a file of `fileBytes`. */
export function decodeHeader(header: Uint8Array, fileBytes: number, where: string): SafetensorsHeader {
  const { __metadata__: metadata = {}, ...entries } = parseHeader(header, where);
  const dataStart = headerLengthBytes + header.length;
  requireContiguous(Object.values<Entry>(entries as Record<string, Entry>), fileBytes - dataStart, where);
  const placed = Object.entries(entries).map(([name, entry]): [string, TensorEntry] => [
    name,
    place(name, entry, dataStart, where),
  ]);
  return { entries: new Map(placed), metadata };
}

/** Throws unless the tensors of a header fill a file of `fileBytes`, of whatever types they are. */
export function requireWholeFile(header: Uint8Array, fileBytes: number, where: string): void {
  const { __metadata__: _, ...entries } = parseHeader(header, where);
  const dataBytes = fileBytes - headerLengthBytes - header.length;
  requireContiguous(Object.values<Entry>(entries as Record<string, Entry>), dataBytes, where);
}

function requireShape(name: string, shape: readonly number[], length: number): void {
  if (elementCount(shape) === length) return;
  throw new TypeError(`Tensor "${name}" has shape [${shape.join()}] but ${length} elements.`);
}

/** Every tensor of a header may be wrong, so messages are cut. */
const problemCharsMax = 500;

function parseHeader(bytes: Uint8Array, where: string): z.infer<typeof Header> {
  let raw: unknown;
  try {
    raw = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    throw damagedFile(where, 'a JSON header', 'bytes that are not JSON', cause);
  }
  const count = typeof raw === 'object' && raw !== null ? Object.keys(raw).length : 0;
  if (count > safetensorsTensorsMax) throw damagedFile(where, `at most ${safetensorsTensorsMax} tensors`, `${count}`);
  const parsed = Header.safeParse(raw);
  if (!parsed.success)
    throw damagedFile(where, 'a safetensors header', problemsIn(parsed.error).slice(0, problemCharsMax));
  return parsed.data;
}

/** The tensors fill the data exactly, without gaps or overlaps, as the format demands. */
function requireContiguous(entries: readonly Entry[], dataBytes: number, where: string): void {
  let end = 0;
  for (const { data_offsets: offsets } of entries.toSorted(
    (a, b) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1],
  )) {
    if (offsets[0] !== end || offsets[1] < offsets[0]) {
      throw damagedFile(where, `a tensor that starts at byte ${end}`, `offsets [${offsets.join()}]`);
    }
    end = offsets[1];
  }
  if (end !== dataBytes) throw damagedFile(where, `${end} bytes of tensors`, `${dataBytes}`);
}

function place(
  name: string,
  { dtype, shape, data_offsets: offsets }: Entry,
  dataStart: number,
  where: string,
): TensorEntry {
  if (!isElementCode(dtype)) {
    const known = Object.keys(elementBytes).join(', ');
    throw new RatchetError('ModelUnsupported', `${where}: tensor "${name}" is ${dtype}; the engine reads ${known}.`);
  }
  const expected = elementCount(shape) * elementBytes[dtype];
  if (offsets[1] - offsets[0] !== expected) {
    throw damagedFile(
      where,
      `${expected} bytes for "${name}" of shape [${shape.join()}]`,
      `${offsets[1] - offsets[0]}`,
    );
  }
  return { code: dtype, shape, start: dataStart + offsets[0], end: dataStart + offsets[1] };
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
    case 'F16':
      return widened(code, new Uint16Array(bytes.buffer));
    default:
      return code satisfies never;
  }
}

function widened(code: 'BF16' | 'F16', halves: Uint16Array): Float32Array {
  const values = new Float32Array(halves.length);
  if (code === 'BF16') fromBrainFloats(halves, values);
  else fromHalfFloats(halves, values);
  return values;
}

function codeOf(data: NamedTensor['data'], floatType: FloatType): ElementCode {
  if (data instanceof Float32Array) return floatCodes[floatType];
  return data instanceof Int32Array ? 'I32' : 'I64';
}

function isElementCode(text: string): text is ElementCode {
  return Object.hasOwn(elementBytes, text);
}

function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** Compares UTF-16 code units, independent of the locale. */
export function byCodeUnits(a: string, b: string): number {
  return a < b ? -1 : Number(a > b);
}

/** The error for a file whose content contradicts its header. */
export function damagedFile(where: string, expected: string, received: string, cause?: unknown): RatchetError {
  const message = `${where} is damaged: expected ${expected}, got ${received}. Restore it from another copy.`;
  return new RatchetError('CheckpointDamaged', message, { cause });
}
