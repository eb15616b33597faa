import { numpyPermutation } from './numpy-shuffle.ts';

/** Which example of a dataset stands at each position of an evaluation. Shuffled, as `Dataset.shuffle` of the same seed has them. */
export function exampleOrder(length: number, shuffleSeed: number | null): (position: number) => number {
  if (shuffleSeed === null) return (position) => position;
  const key = `${length}/${shuffleSeed}`;
  const order = orders.get(key) ?? numpyPermutation(length, shuffleSeed);
  orders.clear(); // the newest is asked for again and again
  orders.set(key, order);
  return (position) => order[position]!;
}

const orders = new Map<string, readonly number[]>();
