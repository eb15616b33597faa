import { permutation } from '../random.ts';
import type { ExampleRef } from './prompt-search.ts';

/** Examples of an environment, as far as drawing needs to know. */
interface DatasetSizes {
  readonly dataset: number;
  /** 0 = no held-out examples. */
  readonly evalDataset: number;
}

interface DrawnExamples {
  readonly train: readonly ExampleRef[];
  readonly val: readonly ExampleRef[];
  readonly test: readonly ExampleRef[];
}

/**
 * Examples for reflection, for selection, and for neither (`test`), drawn by seed. −1 = all. Several environments get
 * equally many, in turn, with rows of the smaller ones repeated; a single one is not repeated. Without held-out
 * examples, the sets are drawn from one dataset and stay disjoint.
 */
export function drawExamples(
  sizes: readonly DatasetSizes[],
  asked: { readonly seed: number; readonly train: number; readonly val: number; readonly test: number },
): DrawnExamples {
  const { seed } = asked;
  const several = sizes.length > 1;
  const drawn = sizes.map(({ dataset, evalDataset }, environment) => {
    const isHeldOut = evalDataset > 0;
    const train = permutation(dataset, seed, 'gepa', 'train', environment);
    const val = isHeldOut ? permutation(evalDataset, seed, 'gepa', 'val', environment) : train;
    const share = (count: number) => shareOf(count, environment, sizes.length);
    const trainCount = share(asked.train) < 0 ? (isHeldOut ? dataset : Math.ceil(dataset / 2)) : share(asked.train);
    const valFrom = isHeldOut ? 0 : Math.min(trainCount, dataset);
    const valCount = share(asked.val) < 0 ? val.length - valFrom : share(asked.val);
    const of = (from: number, count: number, order: readonly number[], name: 'dataset' | 'evalDataset') =>
      taken(order.slice(from), count, several).map((example): ExampleRef => [environment, name, example]);
    const valName = isHeldOut ? 'evalDataset' : 'dataset';
    return {
      train: of(0, trainCount, train, 'dataset'),
      val: of(valFrom, valCount, val, valName),
      // Never repeated: the final comparison needs unseen examples.
      test: val
        .slice(valFrom + valCount)
        .slice(0, asked.test < 0 ? undefined : share(asked.test))
        .map((example): ExampleRef => [environment, valName, example]),
    };
  });
  return {
    train: inTurn(drawn.map(({ train }) => train)),
    val: inTurn(drawn.map(({ val }) => val)),
    test: inTurn(drawn.map(({ test }) => test)),
  };
}

/** A small dataset gives each kind its share, one example at least. */
export function shrunkTo(
  size: number,
  asked: { readonly train: number; readonly val: number; readonly test: number },
): typeof asked {
  const wanted = asked.train + asked.val + asked.test;
  if (wanted <= size) return asked;
  const share = (count: number): number => Math.max(1, Math.floor((count * size) / wanted));
  return { train: share(asked.train), val: share(asked.val), test: share(asked.test) };
}

/** One environment's share of `count`; the first environments get the remainder. −1 stays. */
function shareOf(count: number, environment: number, environments: number): number {
  if (count < 0) return -1;
  return Math.floor(count / environments) + (environment < count % environments ? 1 : 0);
}

function taken(order: readonly number[], count: number, repeats: boolean): number[] {
  if (!repeats || order.length === 0) return order.slice(0, count);
  return Array.from({ length: count }, (_, i) => order[i % order.length]!);
}

function inTurn<T>(lists: readonly (readonly T[])[]): T[] {
  const longest = Math.max(0, ...lists.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) => lists.flatMap((list) => (i < list.length ? [list[i]!] : []))).flat();
}
