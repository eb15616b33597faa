import { permutation } from '../random.ts';

/** Which example of a dataset stands at each position of an evaluation. */
export function exampleOrder(length: number, shuffleSeed: number | null): (position: number) => number {
  if (shuffleSeed === null) return (position) => position;
  const order = permutation(length, 'shuffle', shuffleSeed);
  return (position) => order[position]!;
}
