import { present } from '../../../core/present.ts';
import { formatPath, type KeyPath } from '../../toml/positions.ts';

/** A problem of two settings in combination. */
export interface RelationProblem {
  /** The error is reported at the first. */
  readonly paths: readonly KeyPath[];
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

export type Relations = Iterable<RelationProblem>;

/**
 * A problem of the first of these settings, in relation to the others. A path with a key that the user chose is given
 * in parts, any other as written: `trainer.loss.beta`, `env.0.id`.
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
    ...present({ suggestion }),
  };
}

/** A path as messages spell it: `env[0].id` of `env.0.id`. */
export function spelled(path: string): string {
  return formatPath(partsOf(path));
}

function partsOf(path: string): KeyPath {
  return path.split('.').map((part) => (/^\d+$/.test(part) ? Number(part) : part));
}
