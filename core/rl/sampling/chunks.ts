import type { RunSettings } from '../../settings/run.ts';
import { rolloutsInFlightMax } from '../../limits.ts';
import { groupSizeOf } from '../learning/selection.ts';

/** Divides a sampling round among workers. */

/**
 * One of `count` equal parts of a round's groups, or of one environment's groups in a run with several. One worker
 * generates it.
 */
export interface RoundChunk {
  readonly index: number;
  readonly count: number;
  readonly environment?: string;
}

/** A chunk in its lease. */
export interface LeasedChunk extends RoundChunk {
  readonly groups: number;
  /** Ranges, as in the ledger. */
  readonly ordinals: string;
}

/**
 * Splits a round into chunks of at most `groups` groups. `environments` has the number of groups of each, in a run with
 * several: no chunk mixes environments.
 */
export function chunksOfRound(
  count: number,
  groups: number,
  environments?: Readonly<Record<string, number>>,
): RoundChunk[] {
  if (environments === undefined) return chunksOf(count, groups);
  return Object.entries(environments)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([environment, size]) => chunksOf(size, groups).map((chunk) => ({ ...chunk, environment })));
}

/** The groups of a chunk, from those of its round. */
export function groupsOfChunk<T extends { readonly environment: string }>(
  groups: readonly T[],
  { index, count, environment }: RoundChunk,
): T[] {
  const own = environment === undefined ? groups : groups.filter((group) => group.environment === environment);
  return own.filter((_, i) => Math.floor((i * count) / own.length) === index);
}

/** How many of a run's rollouts each of `workers` workers runs at once: one pool for all environments. */
export function rolloutsAtOnce({ maxConcurrent }: Pick<Shared, 'maxConcurrent'>, workers: number): number {
  const asked = maxConcurrent === null ? Infinity : maxConcurrent / workers;
  return Math.max(1, Math.floor(Math.min(rolloutsInFlightMax, asked)));
}

/** Reserved part of an environment's share by weight. */
const ownShare = 1 / 8;

/**
 * Room of the pool that each environment has for itself. A slow environment has more rollouts in flight than its
 * weight, since they take longer and the trained mix is by weight; one that hangs leaves the others this much.
 */
export function roomKept(
  spec: Pick<RunSettings, 'environments' | 'rolloutsPerExample'>,
  atOnce: number,
): Readonly<Record<string, number>> {
  const { environments } = spec;
  if (environments.length < 2) return {};
  return Object.fromEntries(
    environments.map(({ name }) => {
      const group = groupSizeOf(spec, name); // groups are admitted only whole
      return [name, group * Math.floor((atOnce * ownShare * shareOf(name, environments)) / group)];
    }),
  );
}

/** Examples of a chunk begun per minute, as its share of the config's limit; null = unlimited. */
export function tasksPerMinute(chunk: RoundChunk, { environments, tasksPerMinute: all }: Shared): number | null {
  return all === null ? null : (all * shareOf(chunk.environment, environments)) / chunk.count;
}

interface Shared {
  readonly environments: readonly { readonly name: string; readonly weight: number }[];
  readonly maxConcurrent: number | null;
  readonly tasksPerMinute: number | null;
}

function shareOf(environment: string | undefined, environments: Shared['environments']): number {
  const own = environments.find(({ name }) => name === environment);
  if (own === undefined) return 1;
  return own.weight / environments.reduce((sum, { weight }) => sum + weight, 0);
}

/** Form: `1/2`, or `wordle 1/2`. */
export function describeChunk({ index, count, environment }: RoundChunk): string {
  return `${environment === undefined ? '' : `${environment} `}${index + 1}/${count}`;
}

/** Used in file names. */
export function chunkName({ index, count, environment }: RoundChunk): string {
  return `chunk_${environment === undefined ? '' : `${environment}_`}${index + 1}_of_${count}`;
}

/** Name for some of a chunk's groups that were scored together; `first` is the least of their ordinals. */
export function partName(chunk: RoundChunk, first: number): string {
  return `${chunkName(chunk)}_from_${first}`;
}

/** The name of a chunk, or of a part of one, at the beginning of this one. */
export function chunkIn(name: string): string | undefined {
  return /^chunk_[^/]+?_of_\d{1,9}(?:_from_\d{1,16})?(?=[./]|$)/.exec(name.slice(0, 300))?.[0];
}

function chunksOf(size: number, groups: number): RoundChunk[] {
  const count = Math.ceil(size / groups);
  return Array.from({ length: count }, (_, index) => ({ index, count }));
}
