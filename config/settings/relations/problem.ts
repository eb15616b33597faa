import type { KeyPath } from '../../positions.ts';

/** Something that only shows when two settings are looked at together. */
export interface RelationProblem {
  /** The first is where the error is reported. */
  readonly paths: readonly KeyPath[];
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

export type Relations = Iterable<RelationProblem>;

/**
 * What is wrong with the first of these settings, held against the others. A path with a key that the user chose is given in its
 * parts, any other as it is written: `trainer.loss.beta`, `env.0.id`.
 */
export function problem(
  at: string | readonly (string | KeyPath)[],
  expected: string,
  received: string | number | boolean | undefined,
  suggestion?: string,
): RelationProblem {
  return {
    paths: (typeof at === 'string' ? [at] : at).map((path) => (typeof path === 'string' ? partsOf(path) : path)),
    expected,
    received: String(received ?? 'nothing'),
    ...(suggestion === undefined ? {} : { suggestion }),
  };
}

function partsOf(path: string): KeyPath {
  return path.split('.').map((part) => (/^\d+$/.test(part) ? Number(part) : part));
}
