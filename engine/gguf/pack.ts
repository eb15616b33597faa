import { RatchetError } from '../../core/errors.ts';
import { toHalfFloats } from '../model/half-floats.ts';

/** Packs weights for a GGUF file: the inverse of `quants.ts`. */
export interface Packer {
  /** Code of `ggml_type`. */
  readonly type: number;
  /** Weights per block, and bytes per block. */
  readonly weights: number;
  readonly bytes: number;
  /** Takes whole blocks. `where` names the tensor in messages. */
  pack(values: Float32Array, where: string): Uint8Array;
}

export const packers = {
  f32: { type: 0, weights: 1, bytes: 4, pack: (values) => bytesOf(values) },
  f16: { type: 1, weights: 1, bytes: 2, pack: packHalves },
  q8_0: { type: 8, weights: 32, bytes: 34, pack: packEight },
} as const satisfies Readonly<Record<string, Packer>>;

export type PackingName = keyof typeof packers;

/** `general.file_type` of a file that is mostly packed so. */
export const fileTypes: Readonly<Record<PackingName, number>> = { f32: 0, f16: 1, q8_0: 7 };

const halfMax = 65_504;

function packHalves(values: Float32Array, where: string): Uint8Array {
  for (let i = 0; i < values.length; i++) {
    if (Math.abs(values[i]!) <= halfMax) continue;
    throw new RatchetError(
      'ModelUnsupported',
      `${where}: expected weights up to ${halfMax}, which is the largest half, got ${values[i]}. Take the type f32.`,
    );
  }
  const halves = new Uint16Array(values.length);
  toHalfFloats(values, halves);
  return bytesOf(halves);
}

/** A scale in half precision and 32 8-bit numbers: `quantize_row_q8_0_ref` of ggml, in 32-bit arithmetic. */
function packEight(values: Float32Array): Uint8Array {
  const packed = new Uint8Array((values.length / 32) * 34);
  const half = new Uint16Array(1);
  const scale = new Float32Array(1);
  for (let block = 0; block * 32 < values.length; block++) {
    let largest = 0;
    for (let i = 0; i < 32; i++) largest = Math.max(largest, Math.abs(values[block * 32 + i]!));
    scale[0] = largest / 127;
    toHalfFloats(scale, half);
    packed[block * 34] = half[0]! & 0xff;
    packed[block * 34 + 1] = half[0]! >> 8;
    const by = scale[0] === 0 ? 0 : Math.fround(1 / scale[0]);
    for (let i = 0; i < 32; i++) packed[block * 34 + 2 + i] = awayFromZero(Math.fround(values[block * 32 + i]! * by));
  }
  return packed;
}

/** C's roundf: halves are rounded away from zero. */
function awayFromZero(value: number): number {
  return Math.sign(value) * Math.floor(Math.abs(value) + 0.5);
}

function bytesOf(values: Float32Array | Uint16Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
