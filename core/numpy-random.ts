/**
 * numpy's default generator (PCG64 seeded by SeedSequence), as far as it takes to shuffle: rows of a data set come in the order in which
 * `datasets` gives them, `Dataset.shuffle(seed)` being `numpy.random.default_rng(seed).permutation(n)`. Sources: numpy/random,
 * bit_generator.pyx (SeedSequence), src/pcg64/pcg64.h (O'Neill 2014, PCG: XSL RR 128/64), src/distributions/distributions.c (random_interval). Golden: test/core/numpy-random.test.ts.
 */

const bits32 = 0xffff_ffffn;
const bits64 = (1n << 64n) - 1n;
const bits128 = (1n << 128n) - 1n;

/** A permutation of 0 … count−1, as `numpy.random.default_rng(seed).permutation(count)`; seed ≥ 0, count < 2³². */
export function numpyPermutation(count: number, seed: number): number[] {
  const next32 = generator(seed);
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = upTo(i, next32);
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

/** 0 … most, each as likely: bits are thrown away until they are few enough (`random_interval`). */
function upTo(most: number, next32: () => number): number {
  const mask = 2 ** (32 - Math.clz32(most)) - 1;
  for (;;) {
    const value = (next32() & mask) >>> 0;
    if (value <= most) return value;
  }
}

/** 32 bits a call; of each 64 the lower ones come first. */
function generator(seed: number): () => number {
  const multiplier = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645n;
  const [high, low, streamHigh, streamLow] = seeded(seed);
  const stream = (((streamHigh! << 64n) | streamLow!) << 1n) | 1n;
  const stepped = (state: bigint): bigint => (state * multiplier + stream) & bits128;
  let state = stepped((stepped(0n) + ((high! << 64n) | low!)) & bits128);
  let kept: bigint | null = null;
  return () => {
    if (kept !== null) {
      const value = Number(kept);
      kept = null;
      return value;
    }
    state = stepped(state);
    const folded = (state >> 64n) ^ (state & bits64);
    const turn = state >> 122n;
    const word = ((folded >> turn) | (folded << ((64n - turn) & 63n))) & bits64;
    kept = word >> 32n;
    return Number(word & bits32);
  };
}

const poolWords = 4;

/** `SeedSequence(seed).generate_state(4, uint64)`. */
function seeded(seed: number): bigint[] {
  const pool = mixedPool(seed);
  let constant = 0x8b51_f9dd;
  const words = Array.from({ length: 8 }, (_, i) => {
    let word = pool[i % poolWords]! ^ constant;
    constant = Math.imul(constant, 0x58f3_8ded);
    word = Math.imul(word, constant);
    return BigInt((word ^ (word >>> 16)) >>> 0);
  });
  return Array.from({ length: 4 }, (_, i) => words[2 * i]! | (words[2 * i + 1]! << 32n));
}

function mixedPool(seed: number): number[] {
  const entropy = seed < 2 ** 32 ? [seed] : [seed % 2 ** 32, Math.floor(seed / 2 ** 32)];
  let constant = 0x43b0_d7e5;
  const hashed = (given: number): number => {
    let value = given ^ constant;
    constant = Math.imul(constant, 0x931e_8875);
    value = Math.imul(value, constant);
    return value ^ (value >>> 16);
  };
  const mixed = (x: number, y: number): number => {
    const value = Math.imul(x, 0xca01_f9dd) - Math.imul(y, 0x4973_f715);
    return value ^ (value >>> 16);
  };
  const pool = Array.from({ length: poolWords }, (_, i) => hashed(entropy[i] ?? 0));
  for (let from = 0; from < poolWords; from++) {
    for (let to = 0; to < poolWords; to++) if (from !== to) pool[to] = mixed(pool[to]!, hashed(pool[from]!));
  }
  return pool;
}
