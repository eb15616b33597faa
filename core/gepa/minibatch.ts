import { permutation } from '../random.ts';

interface Sampled {
  /** Size of the training set, ≥ 1. */
  readonly size: number;
  readonly minibatchSize: number;
}

/**
 * The `index`-th minibatch. Every epoch is a new order of the whole set, filled up to whole minibatches, so a resumed
 * search needs only the index.
 */
export function minibatchAt(index: number, sampled: Sampled, seed: number): number[] {
  const epoch = epochOf(index, sampled);
  return cutMinibatch(index, sampled, permutation(sampled.size, seed, 'gepa', 'epoch', epoch));
}

export function epochOf(index: number, { size, minibatchSize }: Sampled): number {
  return Math.floor(index / Math.ceil(size / minibatchSize));
}

/** The `index`-th minibatch, given its epoch's order. */
export function cutMinibatch(index: number, { minibatchSize }: Sampled, order: readonly number[]): number[] {
  if (order.length === 0) throw new Error('There are no training examples to draw a minibatch from.');
  const padded = fillUp(order, minibatchSize);
  const from = (index * minibatchSize) % padded.length;
  return padded.slice(from, from + minibatchSize);
}

/**
 * Fills up to a multiple of the minibatch: each time with the example that occurs least often, the last one among
 * several.
 */
export function fillUp(order: readonly number[], minibatchSize: number): number[] {
  const padded = [...order];
  const times = new Map(order.map((example) => [example, 1]));
  while (padded.length % minibatchSize !== 0) {
    const fewest = Math.min(...times.values());
    const example = order.findLast((id) => times.get(id) === fewest)!;
    times.set(example, fewest + 1);
    padded.push(example);
  }
  return padded;
}
