/**
 * Random numbers by key, not by order: the same key gives the same number in any order, process or batch. So a resumed
 * run equals an undisturbed one.
 */

/** 32 bits from a list of words: MurmurHash3's x86_32 body and finalizer over the key (Appleby, public domain). */
export function hash32(...key: readonly (number | string)[]): number {
  let h = 0x9747b28c;
  let length = 0;
  for (const word of key) {
    if (typeof word === 'string') {
      for (let i = 0; i < word.length; i++) h = mix(h, word.charCodeAt(i));
      length += word.length;
    } else {
      h = mix(mix(h, word | 0), Math.floor(word / 2 ** 32) | 0);
      length += 2;
    }
    h = mix(h, 0x5bd1e995);
  }
  h ^= length;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** A number in [0, 1) for a key. */
export function uniform(...key: readonly (number | string)[]): number {
  return hash32(...key) / 2 ** 32;
}

/** A stream in [0, 1) for a key, for code that draws a varying number of times (mulberry32). */
export function randomStream(...key: readonly (number | string)[]): () => number {
  let state = hash32(...key);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A permutation of 0 … count−1 for a key (Fisher–Yates). */
export function permutation(count: number, ...key: readonly (number | string)[]): number[] {
  const random = randomStream(...key);
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

function mix(h: number, word: number): number {
  let k = Math.imul(word, 0xcc9e2d51);
  k = (k << 15) | (k >>> 17);
  h ^= Math.imul(k, 0x1b873593);
  h = (h << 13) | (h >>> 19);
  return (Math.imul(h, 5) + 0xe6546b64) | 0;
}
