import type { FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { openRegular } from '../../host/regular-file.ts';
import { ofRepository } from './model-repository.ts';
import { fromBrainFloats, fromHalfFloats, toBrainFloats, toHalfFloats } from './half-floats.ts';
import {
  byCodeUnits,
  damagedFile,
  decodeHeader,
  encodeHeader,
  type FloatType,
  headerLength,
  headerLengthBytes,
  type NamedTensor,
  requireWholeFile,
  type SafetensorsHeader,
  type TensorEntry,
} from './safetensors.ts';

/**
 * Files of weights, tensor by tensor: a file may be larger than the largest Buffer, and nothing but the tensors
 * themselves is held in memory.
 */

/** Floats that are read, converted or written at a time; 4 MiB stay in the cache between two of these. */
const chunkFloats = 1 << 20;

interface FloatTensor {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export class SafetensorsReader {
  readonly #file: FileHandle;
  readonly #where: string;
  readonly header: SafetensorsHeader;

  private constructor(file: FileHandle, where: string, header: SafetensorsHeader) {
    this.#file = file;
    this.#where = where;
    this.header = header;
  }

  /** Opens a file of a model folder; links are allowed as in {@link ofRepository}. */
  static async open(path: string): Promise<SafetensorsReader> {
    const file = await openRegular(path, ofRepository(dirname(path)));
    try {
      return new SafetensorsReader(file, path, await readHeader(file, path));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Fills `target` with a tensor of its size, whatever precision the file holds it in. */
  async readFloats(name: string, target: Float32Array): Promise<void> {
    const entry = this.header.entries.get(name);
    if (!entry) throw damagedFile(this.#where, `a tensor "${name}"`, 'none');
    const { code } = entry;
    if (code === 'F32') return this.#readBytes(target, entry.start);
    if (code !== 'BF16' && code !== 'F16') throw damagedFile(this.#where, `floats in "${name}"`, code);
    return this.#readHalves(entry, code, target);
  }

  async #readHalves({ start }: TensorEntry, code: 'BF16' | 'F16', target: Float32Array): Promise<void> {
    const chunk = new Uint16Array(Math.min(chunkFloats, target.length));
    const widen = code === 'BF16' ? fromBrainFloats : fromHalfFloats;
    for (let done = 0; done < target.length; done += chunk.length) {
      const part = target.subarray(done, done + chunk.length);
      const halves = chunk.subarray(0, part.length);
      await this.#readBytes(halves, start + 2 * done);
      widen(halves, part);
    }
  }

  /** The data of a tensor in pieces, floats of any precision as 32-bit ones. */
  async *pieces(name: string): AsyncGenerator<Float32Array | Uint8Array> {
    const { code, start, end } = this.header.entries.get(name)!;
    const isHalf = code === 'BF16' || code === 'F16';
    const step = chunkFloats * (isHalf ? 2 : 4);
    for (let at = start; at < end; at += step) {
      const bytes = new Uint8Array(Math.min(step, end - at));
      await readFully(this.#file, bytes, at, this.#where);
      if (code === 'F32') yield new Float32Array(bytes.buffer);
      else if (!isHalf) yield bytes;
      else {
        const values = new Float32Array(bytes.length / 2);
        (code === 'BF16' ? fromBrainFloats : fromHalfFloats)(new Uint16Array(bytes.buffer), values);
        yield values;
      }
    }
  }

  async #readBytes(target: Float32Array | Uint16Array, position: number): Promise<void> {
    const step = (chunkFloats * 4) / target.BYTES_PER_ELEMENT;
    for (let done = 0; done < target.length; done += step) {
      const part = bytesOf(target.subarray(done, done + step));
      await readFully(this.#file, part, position + done * target.BYTES_PER_ELEMENT, this.#where);
    }
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

/** Appends a whole file of tensors, in the order of their names, to an open, empty one. */
export async function writeSafetensors(
  file: FileHandle,
  tensors: Readonly<Record<string, FloatTensor>>,
  options: { metadata: Readonly<Record<string, string>>; dtype: FloatType },
): Promise<void> {
  const entries = Object.entries(tensors).toSorted(([a], [b]) => byCodeUnits(a, b));
  const named: readonly (readonly [string, NamedTensor])[] = entries;
  await file.writeFile(encodeHeader(named, options.metadata, options.dtype));
  for (const [name, { data }] of entries) {
    for (let done = 0; done < data.length; done += chunkFloats) {
      await file.writeFile(encodeFloats(data.subarray(done, done + chunkFloats), options.dtype, name));
    }
  }
}

/** Appends the tensors of another file to an open, empty one: in the order of their names, floats as 32-bit ones. */
export async function copySafetensors(
  file: FileHandle,
  from: SafetensorsReader,
  metadata: Readonly<Record<string, string>>,
): Promise<void> {
  const entries = [...from.header.entries].toSorted(([a], [b]) => byCodeUnits(a, b));
  const outlines = entries.map(([name, { shape, code }]) => {
    const written = code === 'BF16' || code === 'F16' ? 'F32' : code;
    return [name, { shape, code: written }] as const;
  });
  await file.writeFile(encodeHeader(outlines, metadata));
  for (const [name] of entries) {
    for await (const { buffer } of from.pieces(name)) await file.writeFile(new Uint8Array(buffer));
  }
}

function encodeFloats(values: Float32Array, dtype: FloatType, name: string): Uint8Array {
  if (dtype === 'float32') return bytesOf(values);
  const halves = new Uint16Array(values.length);
  if (dtype === 'bfloat16') toBrainFloats(values, halves);
  else toHalfFloats(values, halves);
  if (dtype === 'float16') requireFinite(values, halves, name);
  return bytesOf(halves);
}

/** A weight that silently became infinite would ruin the model that is saved. */
function requireFinite(values: Float32Array, halves: Uint16Array, name: string): void {
  const lost = values.find((value, i) => Number.isFinite(value) && (halves[i]! & 0x7fff) === 0x7c00);
  if (lost === undefined) return;
  throw new RatchetError(
    'Unsupported',
    `float16 ends at 65504, but "${name}" holds ${lost}. Save the weights as bfloat16 or float32.`,
  );
}

/** Throws unless the file has the bytes that its header promises. */
export async function requireWholeSafetensors(path: string): Promise<void> {
  const file = await openRegular(path, ofRepository(dirname(path)));
  try {
    const { header, size } = await readHeaderBytes(file, path);
    requireWholeFile(header, size, path);
  } finally {
    await file.close();
  }
}

async function readHeader(file: FileHandle, where: string): Promise<SafetensorsHeader> {
  const { header, size } = await readHeaderBytes(file, where);
  return decodeHeader(header, size, where);
}

async function readHeaderBytes(file: FileHandle, where: string): Promise<{ header: Uint8Array; size: number }> {
  const { size } = await file.stat();
  const beginning = new Uint8Array(headerLengthBytes);
  if (size >= headerLengthBytes) await readFully(file, beginning, 0, where);
  const header = new Uint8Array(headerLength(beginning, size, where) - headerLengthBytes);
  await readFully(file, header, headerLengthBytes, where);
  return { header, size };
}

/** Fills `target` from this position; throws `CheckpointDamaged` if the file ends before. */
export async function readFully(file: FileHandle, target: Uint8Array, position: number, where: string): Promise<void> {
  for (let done = 0; done < target.length;) {
    const { bytesRead } = await file.read(target, done, target.length - done, position + done);
    if (bytesRead === 0) throw damagedFile(where, `${target.length} bytes at ${position}`, `${done}`);
    done += bytesRead;
  }
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array | Uint16Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}
