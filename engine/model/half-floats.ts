/** Half precision, as the bits of 16-bit words. Rounding is to nearest, ties to even, as PyTorch's `.to()` rounds. */

const word = new Float32Array(1);
const bitsOfWord = new Uint32Array(word.buffer);

/** A bfloat16 is the upper half of a float32. */
export function fromBrainFloats(halves: Uint16Array, target: Float32Array): void {
  const bits = new Uint32Array(target.buffer, target.byteOffset, target.length);
  for (let i = 0; i < halves.length; i++) bits[i] = halves[i]! << 16;
}

export function toBrainFloats(values: Float32Array, target: Uint16Array): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < values.length; i++) {
    const all = bits[i]!;
    // A NaN may have all its fraction in the lower half: its highest fraction bit is set so that it stays one.
    if ((all & 0x7fffffff) > 0x7f800000) target[i] = (all >>> 16) | 0x40;
    else target[i] = (all + 0x7fff + ((all >>> 16) & 1)) >>> 16;
  }
}

/** IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits. */
export function fromHalfFloats(halves: Uint16Array, target: Float32Array): void {
  halfTable ??= Float32Array.from({ length: 1 << 16 }, (_, half) => fromHalf(half));
  for (let i = 0; i < halves.length; i++) target[i] = halfTable[halves[i]!]!;
}

let halfTable: Float32Array | undefined;

/** Values beyond ±65504 become infinite. */
export function toHalfFloats(values: Float32Array, target: Uint16Array): void {
  for (let i = 0; i < values.length; i++) target[i] = toHalf(values[i]!);
}

function fromHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function toHalf(value: number): number {
  word[0] = value;
  const bits = bitsOfWord[0]!;
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00; // NaN
  if (magnitude >= 0x47800000) return sign | 0x7c00; // 2^16 and more, infinity
  // Below 2^-14 a half is a multiple of 2^-24.
  if (magnitude < 0x38800000) return sign | roundToEven(Math.abs(value) * 2 ** 24);
  // 13 fraction bits go; a carry runs into the exponent, at its top into infinity, as it should.
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
}

function roundToEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest === 0.5) return floor + (floor % 2);
  return rest > 0.5 ? floor + 1 : floor;
}
