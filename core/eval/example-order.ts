import { keptPermutation } from '../numpy-shuffle.ts';

/**
 * Maps positions of an evaluation to examples of a dataset without the first `skipped`. Shuffled like `Dataset.shuffle`
 * with an equal seed on the rest.
 */
export function exampleOrder(length: number, shuffleSeed: number | null, skipped = 0): (position: number) => number {
  if (shuffleSeed === null) return (position) => skipped + position;
  const order = keptPermutation(length - skipped, shuffleSeed);
  return (position) => skipped + order[position]!;
}
