import { permutation } from '../random.ts';

/** Which example of a dataset stands at each position of an evaluation that leaves the first `skipped` out. */
export function exampleOrder(length: number, shuffleSeed: number | null, skipped = 0): (position: number) => number {
  if (shuffleSeed === null) return (position) => skipped + position;
  const order = permutation(length - skipped, 'shuffle', shuffleSeed);
  return (position) => skipped + order[position]!;
}
