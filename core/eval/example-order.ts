import { numpyPermutation } from '../numpy-shuffle.ts';

/**
 * Which example of a dataset stands at each position of an evaluation that leaves the first `skipped` out. Shuffled, as `Dataset.shuffle` of
 * the same seed has what is left.
 */
export function exampleOrder(length: number, shuffleSeed: number | null, skipped = 0): (position: number) => number {
  if (shuffleSeed === null) return (position) => skipped + position;
  const key = `${length - skipped}/${shuffleSeed}`;
  const order = orders.get(key) ?? numpyPermutation(length - skipped, shuffleSeed);
  orders.clear(); // the newest is asked for again and again
  orders.set(key, order);
  return (position) => skipped + order[position]!;
}

const orders = new Map<string, readonly number[]>();
