import { RatchetError } from '../../core/errors.ts';
import { poolNamePattern } from '../../core/names.ts';

/** A pool, and the labels with which a worker joins it. */
export interface JoinedPool {
  readonly pool: string;
  readonly labels: Readonly<Record<string, string>>;
}

/** Reads `--pool NAME` and `--label NAME=VALUE …`; undefined without a pool. */
export function readJoinedPool(
  pool: string | undefined,
  pairs: readonly string[] | undefined = [],
): JoinedPool | undefined {
  if (pool === undefined) {
    if (pairs.length > 0)
      throw new RatchetError('ConfigInvalid', '--label is of a pool: expected --pool NAME beside it.');
    return undefined;
  }
  if (!poolNamePattern.test(pool))
    throw new RatchetError('ConfigInvalid', `--pool: expected up to 64 letters, digits and . _ -, got "${pool}".`);
  const labels = pairs.map((pair) => {
    const [, name, value] = /^([^=]+)=(.+)$/.exec(pair) ?? [];
    if (name === undefined || value === undefined || !poolNamePattern.test(name) || !poolNamePattern.test(value))
      throw new RatchetError('ConfigInvalid', `--label: expected NAME=VALUE, such as gpu=h100; got "${pair}".`);
    return [name, value] as const;
  });
  return { pool, labels: Object.fromEntries(labels) };
}

/** The same as arguments, for a worker that is started. */
export function argumentsOfPool(joined: JoinedPool | undefined): string[] {
  if (joined === undefined) return [];
  return ['--pool', joined.pool, ...Object.entries(joined.labels).flatMap(([name, value]) => ['--label', `${name}=${value}`])]; // prettier-ignore
}
