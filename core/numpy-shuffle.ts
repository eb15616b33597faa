/**
 * The order that `datasets.Dataset.shuffle(seed)` gives, and so vf-eval's `--shuffle` and the rows of prime-rl's sft: NumPy's `default_rng(seed).permutation(n)`. That is
 * SeedSequence (O'Neill's seed_seq_fe), PCG64 (XSL-RR 128/64), and Fisher–Yates with integers drawn by rejection; a test has
 * orders that NumPy made.
 */
export function numpyPermutation(count: number, seed: number): number[] {
  const next = uint32s(seed);
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = bounded(next, i);
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

/** Caches up to `ordersKeptMax` permutations: each step of a run needs that of its pass. */
export function keptPermutation(count: number, seed: number): readonly number[] {
  const key = `${count}/${seed}`;
  const order = orders.get(key) ?? numpyPermutation(count, seed);
  orders.delete(key);
  orders.set(key, order);
  if (orders.size > ordersKeptMax) orders.delete(orders.keys().next().value!);
  return order;
}

/** Most recently used last. */
const orders = new Map<string, readonly number[]>();
/** A step may cross from one pass into the next, beside an evaluation. */
const ordersKeptMax = 4;

/** From 0 to `most`, without bias: as many bits as it has, drawn until they fit (`random_interval`). */
function bounded(next: () => bigint, most: number): number {
  const bits = 2 ** (32 - Math.clz32(most)) - 1;
  for (;;) {
    const value = (Number(next()) & bits) >>> 0;
    if (value <= most) return value;
  }
}

const mask32 = 0xffff_ffffn;
const mask64 = (1n << 64n) - 1n;
const mask128 = (1n << 128n) - 1n;
const multiplier = (2549297995355413924n << 64n) + 4865540595714422341n;

/** PCG64's stream as 32-bit halves, the low one first. */
function uint32s(seed: number): () => bigint {
  const [stateHigh, stateLow, streamHigh, streamLow] = seedWords(seed) as [bigint, bigint, bigint, bigint];
  const increment = ((((streamHigh << 64n) | streamLow) << 1n) | 1n) & mask128;
  const step = (state: bigint): bigint => (state * multiplier + increment) & mask128;
  let state = step((step(0n) + ((stateHigh << 64n) | stateLow)) & mask128);
  let half: bigint | null = null;
  return () => {
    if (half !== null) {
      const high = half;
      half = null;
      return high;
    }
    state = step(state);
    const value = rotated((state >> 64n) ^ (state & mask64), state >> 122n);
    half = value >> 32n;
    return value & mask32;
  };
}

function rotated(value: bigint, by: bigint): bigint {
  const low = value & mask64;
  return ((low >> by) | (low << (64n - by))) & mask64;
}

/** `SeedSequence(seed).generate_state(4, uint64)`. */
function seedWords(seed: number): bigint[] {
  const entropy = seed === 0 ? [0] : [];
  for (let rest = seed; rest > 0; rest = Math.floor(rest / 2 ** 32)) entropy.push(rest >>> 0);
  let key = 0x43b0d7e5;
  const hashed = (value: number): number => {
    const mixed = (value ^ key) >>> 0;
    key = Math.imul(key, 0x931e8875) >>> 0;
    return folded(Math.imul(mixed, key));
  };
  const pool = Array.from({ length: 4 }, (_, i) => hashed(entropy[i] ?? 0));
  for (let from = 0; from < pool.length; from++) {
    for (let to = 0; to < pool.length; to++) {
      if (from !== to) pool[to] = mixed(pool[to]!, hashed(pool[from]!));
    }
  }
  let key2 = 0x8b51f9dd;
  const words = Array.from({ length: 8 }, (_, i) => {
    const value = (pool[i % pool.length]! ^ key2) >>> 0;
    key2 = Math.imul(key2, 0x58f38ded) >>> 0;
    return folded(Math.imul(value, key2));
  });
  return Array.from({ length: 4 }, (_, i) => (BigInt(words[2 * i + 1]!) << 32n) | BigInt(words[2 * i]!));
}

function mixed(x: number, y: number): number {
  return folded(Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y));
}

function folded(value: number): number {
  const word = value >>> 0;
  return (word ^ (word >>> 16)) >>> 0;
}
