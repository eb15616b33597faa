import { fromBrainFloats, fromHalfFloats } from '../model/half-floats.ts';

/**
 * Unpacks GGUF weights, stored in blocks with scales of their own, into floats. Bit for bit equal to ggml's
 * `dequantize_row_…` (ggml/src/ggml-quants.c), in 32-bit arithmetic.
 */
export interface Packing {
  readonly name: string;
  /** Weights per block, and bytes per block. */
  readonly weights: number;
  readonly bytes: number;
  /** Takes whole blocks. */
  unpack(from: Uint8Array, target: Float32Array): void;
}

/** Keyed by the code of `ggml_type`. */
export const packings: Readonly<Record<number, Packing>> = {
  0: { name: 'F32', weights: 1, bytes: 4, unpack: (from, target) => bytesOf(target).set(from) },
  1: { name: 'F16', weights: 1, bytes: 2, unpack: (from, target) => fromHalfFloats(wordsOf(from), target) },
  30: { name: 'BF16', weights: 1, bytes: 2, unpack: (from, target) => fromBrainFloats(wordsOf(from), target) },
  2: inBlocks('Q4_0', 32, 18, unpackFour({ hasLeast: false })),
  3: inBlocks('Q4_1', 32, 20, unpackFour({ hasLeast: true })),
  6: inBlocks('Q5_0', 32, 22, unpackFive({ hasLeast: false })),
  7: inBlocks('Q5_1', 32, 24, unpackFive({ hasLeast: true })),
  8: inBlocks('Q8_0', 32, 34, (block, target) => {
    const scale = half(block, 0);
    for (let i = 0; i < 32; i++) target[i] = scale * signed(block[2 + i]!);
  }),
  10: inBlocks('Q2_K', 256, 84, unpackTwoK),
  11: inBlocks('Q3_K', 256, 110, unpackThreeK),
  20: inBlocks('IQ4_NL', 32, 18, (block, target) => unpackSteps(half(block, 0), block.subarray(2), target)),
  23: inBlocks('IQ4_XS', 256, 136, unpackFourXs),
  12: inBlocks('Q4_K', 256, 144, unpackFourK),
  13: inBlocks('Q5_K', 256, 176, unpackFiveK),
  14: inBlocks('Q6_K', 256, 210, unpackSixK),
};

/** ggml's names of unsupported packings (`ggml_type`), for messages. */
export const otherPackings: Readonly<Record<number, string>> = {
  9: 'Q8_1',
  15: 'Q8_K',
  16: 'IQ2_XXS',
  17: 'IQ2_XS',
  18: 'IQ3_XXS',
  19: 'IQ1_S',
  21: 'IQ3_S',
  22: 'IQ2_S',
  29: 'IQ1_M',
  34: 'TQ1_0',
  35: 'TQ2_0',
  39: 'MXFP4',
};

type Unpack = (block: Uint8Array, target: Float32Array) => void;

function inBlocks(name: string, weights: number, bytes: number, unpack: Unpack): Packing {
  return {
    name,
    weights,
    bytes,
    unpack(from, target) {
      for (let block = 0; block * bytes < from.length; block++) {
        unpack(
          from.subarray(block * bytes, (block + 1) * bytes),
          target.subarray(block * weights, (block + 1) * weights),
        );
      }
    },
  };
}

/** A scale, sometimes the least value, and 32 numbers of 4 bits: the first 16 in the lower halves of the bytes. */
function unpackFour({ hasLeast }: { readonly hasLeast: boolean }): Unpack {
  const first = hasLeast ? 4 : 2;
  return (block, target) => {
    const [scale, least] = [half(block, 0), hasLeast ? half(block, 2) : -0]; // adding -0 changes no value
    const offset = hasLeast ? 0 : 8;
    for (let i = 0; i < 16; i++) {
      const byte = block[first + i]!;
      target[i] = Math.fround(scale * ((byte & 0xf) - offset)) + least;
      target[16 + i] = Math.fround(scale * ((byte >> 4) - offset)) + least;
    }
  };
}

/** Unpacks 5-bit numbers: their fifth bits are in a 32-bit word before them. */
function unpackFive({ hasLeast }: { readonly hasLeast: boolean }): Unpack {
  const high = hasLeast ? 4 : 2;
  return (block, target) => {
    const [scale, least] = [half(block, 0), hasLeast ? half(block, 2) : -0]; // adding -0 changes no value
    const offset = hasLeast ? 0 : 16;
    const fifth = (i: number): number => ((block[high + (i >> 3)]! >> (i & 7)) & 1) << 4;
    for (let i = 0; i < 16; i++) {
      const byte = block[high + 4 + i]!;
      target[i] = Math.fround(scale * (((byte & 0xf) | fifth(i)) - offset)) + least;
      target[16 + i] = Math.fround(scale * (((byte >> 4) | fifth(16 + i)) - offset)) + least;
    }
  };
}

/** Scale and least value of the j-th 32 of a block of 256: 6 bits each, packed into 12 bytes (`get_scale_min_k4`). */
function scalesOf(packed: Uint8Array, j: number): readonly [scale: number, least: number] {
  if (j < 4) return [packed[j]! & 63, packed[j + 4]! & 63];
  const low = packed[j + 4]!;
  return [(low & 0xf) | ((packed[j - 4]! >> 6) << 4), (low >> 4) | ((packed[j]! >> 6) << 4)];
}

/** The first 32 of every 64 numbers are in the lower halves of 32 bytes, the other 32 in the upper halves. */
function unpackK(
  block: Uint8Array,
  target: Float32Array,
  first: number,
  fifth: (pair: number, i: number) => number,
): void {
  const [scale, least] = [half(block, 0), half(block, 2)];
  const packed = block.subarray(4, 16);
  for (let pair = 0; pair < 8; pair++) {
    const [ownScale, ownLeast] = scalesOf(packed, pair);
    const [by, less] = [Math.fround(scale * ownScale), Math.fround(least * ownLeast)];
    for (let i = 0; i < 32; i++) {
      const byte = block[first + 32 * (pair >> 1) + i]!;
      const number = (pair % 2 === 0 ? byte & 0xf : byte >> 4) + fifth(pair, i);
      target[32 * pair + i] = Math.fround(by * number) - less;
    }
  }
}

function unpackFourK(block: Uint8Array, target: Float32Array): void {
  unpackK(block, target, 16, () => 0);
}

function unpackFiveK(block: Uint8Array, target: Float32Array): void {
  unpackK(block, target, 48, (pair, i) => ((block[16 + i]! >> pair) & 1) << 4);
}

/** 256 numbers of 6 bits, 4 lower and 2 upper ones apart, with a scale for each 16. */
function unpackSixK(block: Uint8Array, target: Float32Array): void {
  const scale = half(block, 208);
  for (let upper = 0; upper < 2; upper++) {
    for (let i = 0; i < 32; i++) {
      const bits = block[128 + 32 * upper + i]!;
      for (let quarter = 0; quarter < 4; quarter++) {
        const byte = block[64 * upper + 32 * (quarter % 2) + i]!;
        const low = quarter < 2 ? byte & 0xf : byte >> 4;
        const number = (low | (((bits >> (2 * quarter)) & 3) << 4)) - 32;
        const own = signed(block[192 + 8 * upper + 2 * quarter + (i >> 4)]!);
        target[128 * upper + 32 * quarter + i] = Math.fround(scale * own) * number;
      }
    }
  }
}

/** The j-th number of 2 bits of 64 bytes: of each 128 the first 32 are in the lowest bits of 32 bytes. */
function twoBits(bytes: Uint8Array, j: number): number {
  return (bytes[32 * (j >> 7) + (j & 31)]! >> (2 * ((j >> 5) & 3))) & 3;
}

/** 256 numbers of 2 bits, with a scale and a least value of 4 bits each for each 16. */
function unpackTwoK(block: Uint8Array, target: Float32Array): void {
  const [scale, least] = [half(block, 80), half(block, 82)];
  const numbers = block.subarray(16, 80);
  for (let j = 0; j < 256; j++) {
    const own = block[j >> 4]!;
    target[j] = Math.fround(Math.fround(scale * (own & 0xf)) * twoBits(numbers, j)) - Math.fround(least * (own >> 4));
  }
}

/** 256 numbers of 2 bits and the sign of each apart, with a scale of 6 bits for each 16. */
function unpackThreeK(block: Uint8Array, target: Float32Array): void {
  const scale = half(block, 108);
  const [numbers, packed] = [block.subarray(32, 96), block.subarray(96, 108)];
  for (let j = 0; j < 256; j++) {
    const of = j >> 4;
    const low = (packed[of & 7]! >> (4 * (of >> 3))) & 0xf;
    const own = (low | (((packed[8 + (of & 3)]! >> (2 * (of >> 2))) & 3) << 4)) - 32;
    const isPositive = (block[j & 31]! >> (j >> 5)) & 1;
    target[j] = Math.fround(scale * own) * (twoBits(numbers, j) - (isPositive ? 0 : 4));
  }
}

/** Values of IQ4's 4-bit codes (`kvalues_iq4nl`): steps are finer around 0. */
const steps = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113] as const;

/** 32 numbers of 4 bits: the first 16 in the lower halves of 16 bytes. */
function unpackSteps(scale: number, bytes: Uint8Array, target: Float32Array): void {
  for (let i = 0; i < 16; i++) {
    target[i] = scale * steps[bytes[i]! & 0xf]!;
    target[16 + i] = scale * steps[bytes[i]! >> 4]!;
  }
}

/** 256 numbers of 4 bits, with a scale of 6 bits for each 32. */
function unpackFourXs(block: Uint8Array, target: Float32Array): void {
  const scale = half(block, 0);
  const high = block[2]! | (block[3]! << 8);
  for (let j = 0; j < 8; j++) {
    const own = (((block[4 + (j >> 1)]! >> (4 * (j & 1))) & 0xf) | (((high >> (2 * j)) & 3) << 4)) - 32;
    const numbers = block.subarray(8 + 16 * j, 24 + 16 * j);
    unpackSteps(Math.fround(scale * own), numbers, target.subarray(32 * j, 32 * (j + 1)));
  }
}

const word = new Uint16Array(1);
const float = new Float32Array(1);

function half(bytes: Uint8Array, at: number): number {
  word[0] = bytes[at]! | (bytes[at + 1]! << 8);
  fromHalfFloats(word, float);
  return float[0]!;
}

function signed(byte: number): number {
  return (byte << 24) >> 24;
}

function bytesOf(values: Float32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** Copies bytes that do not begin at an even offset. */
function wordsOf(bytes: Uint8Array): Uint16Array {
  const own = bytes.byteOffset % 2 === 0 ? bytes : bytes.slice();
  return new Uint16Array(own.buffer, own.byteOffset, own.byteLength / 2);
}
