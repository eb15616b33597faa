import { keptPermutation } from '../numpy-shuffle.ts';

/**
 * Which example of a dataset stands at each position of an evaluation that leaves the first `skipped` out. Shuffled, as `Dataset.shuffle` of
 * the same seed has what is left.
 */
export function exampleOrder(length: number, shuffleSeed: number | null, skipped = 0): (position: number) => number {
  if (shuffleSeed === null) return (position) => skipped + position;
  const order = keptPermutation(length - skipped, shuffleSeed);
  return (position) => skipped + order[position]!;
}
