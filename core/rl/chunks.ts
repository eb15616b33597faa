import { rolloutsInFlightMax } from '../limits.ts';

/** How a sampling round is divided among workers. */

/** Which of how many equal parts of the round's groups; with several environments, of the groups of one. One worker plays it. */
export interface RoundChunk {
  readonly index: number;
  readonly count: number;
  readonly environment?: string;
}

/** As its lease names it. */
export interface LeasedChunk extends RoundChunk {
  readonly groups: number;
  /** As ranges. */
  readonly ordinals: string;
}

/** Of `groups` groups at most each. `environments` says how many groups are of each, where the run has several: no chunk holds groups of two. */
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

/** The groups of a chunk, of all those of its round. */
export function groupsOfChunk<T extends { readonly environment: string }>(
  groups: readonly T[],
  { index, count, environment }: RoundChunk,
): T[] {
  const own = environment === undefined ? groups : groups.filter((group) => group.environment === environment);
  return own.filter((_, i) => Math.floor((i * count) / own.length) === index);
}

/**
 * How many rollouts of a chunk's environment one of `workers` workers plays at once. What a worker plays at once is shared among a run's
 * environments by weight, whoever is slow: rollouts that hang take the place of others of their own environment alone.
 */
export function rolloutsAtOnce(chunk: RoundChunk, { environments, maxConcurrent }: Shared, workers: number): number {
  const asked = maxConcurrent === null ? Infinity : maxConcurrent / workers;
  return Math.max(1, Math.floor(Math.min(rolloutsInFlightMax, asked) * shareOf(chunk, environments)));
}

/** How many of a chunk's examples are begun in a minute, of what the config allows all of them; null = as they come. */
export function tasksPerMinute(chunk: RoundChunk, { environments, tasksPerMinute: all }: Shared): number | null {
  return all === null ? null : (all * shareOf(chunk, environments)) / chunk.count;
}

interface Shared {
  readonly environments: readonly { readonly name: string; readonly weight: number }[];
  readonly maxConcurrent: number | null;
  readonly tasksPerMinute: number | null;
}

function shareOf({ environment }: RoundChunk, environments: Shared['environments']): number {
  const own = environments.find(({ name }) => name === environment);
  if (own === undefined) return 1;
  return own.weight / environments.reduce((sum, { weight }) => sum + weight, 0);
}

/** `1/2`, or `wordle 1/2`. */
export function describeChunk({ index, count, environment }: RoundChunk): string {
  return `${environment === undefined ? '' : `${environment} `}${index + 1}/${count}`;
}

/** As a part of file names. */
export function chunkName({ index, count, environment }: RoundChunk): string {
  return `chunk_${environment === undefined ? '' : `${environment}_`}${index + 1}_of_${count}`;
}

/** The same of some of its groups that were scored together; `first` is the least of their ordinals. */
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
