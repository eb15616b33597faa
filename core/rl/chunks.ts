import { generateChunks, generateChunksMax, rolloutsInFlightMax } from '../limits.ts';

/** How a sampling round is divided among workers. */

/** Which of how many equal parts of the round's groups; with several environments, of the groups of one. */
export interface RoundChunk {
  readonly index: number;
  readonly count: number;
  readonly environment?: string;
}

/** `groups` says how many are of each environment, where the run has several: then no chunk holds groups of two. */
export function chunksOfRound(count: number, groups?: Readonly<Record<string, number>>): RoundChunk[] {
  if (groups === undefined) return chunksOf(Math.min(generateChunks, count));
  const present = Object.entries(groups).filter(([, size]) => size > 0);
  const each = Math.max(1, Math.min(generateChunks, Math.floor(generateChunksMax / present.length)));
  return present
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([environment, size]) => chunksOf(Math.min(each, size)).map((chunk) => ({ ...chunk, environment })));
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
 * How many of a chunk's rollouts are played at once. What a worker plays at once is shared among a run's environments by
 * weight, whoever is slow: rollouts that hang take the place of others of their own environment alone.
 */
export function rolloutsAtOnce(
  { environment, count }: RoundChunk,
  environments: readonly { readonly name: string; readonly weight: number }[],
): number {
  const own = environments.find(({ name }) => name === environment);
  if (own === undefined) return rolloutsInFlightMax;
  const total = environments.reduce((sum, { weight }) => sum + weight, 0);
  return Math.max(1, Math.floor((rolloutsInFlightMax * own.weight) / total / count));
}

/** `1/2`, or `wordle 1/2`. */
export function describeChunk({ index, count, environment }: RoundChunk): string {
  return `${environment === undefined ? '' : `${environment} `}${index + 1}/${count}`;
}

/** As a part of file names. */
export function chunkName({ index, count, environment }: RoundChunk): string {
  return `chunk_${environment === undefined ? '' : `${environment}_`}${index + 1}_of_${count}`;
}

function chunksOf(count: number): RoundChunk[] {
  return Array.from({ length: count }, (_, index) => ({ index, count }));
}
