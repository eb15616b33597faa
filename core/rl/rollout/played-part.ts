import { present } from '../../present.ts';
import { decodeRanges, encodeRanges } from '../ledger.ts';
import type { FilteredGroups } from '../filters/filter-groups.ts';
import type { KeptGroups, ObjectRef } from '../run-state.ts';

/** Groups of a chunk that were scored together: all of them, or those that ended at about the same time. */
export interface PlayedPart {
  /** → {@link ScoredGroup} */
  readonly scored: ObjectRef;
  readonly filtered: FilteredGroups;
  /** Ranges, as in the ledger. */
  readonly ordinals: string;
  readonly rollouts: number;
  /** Tokens sampled for these groups. */
  readonly tokens: number;
  /** Seconds from the start of the chunk on the worker to the end of the last of them. */
  readonly generateS: number;
  readonly scoreS: number;
  /** Average share of that time during which a rollout is in progress; null if there was none. */
  readonly occupancy: number | null;
}

/** Report to a run about groups that ended while others of their chunks are in flight. */
export interface PartsNotice {
  /** Another lineage of the same run may have the same ordinals. */
  readonly lineage: string;
  readonly parts: readonly PlayedPart[];
}

/** The part with only these groups; null if it has none of them. Counts over the whole part stay as they are. */
export function restrictPart(part: PlayedPart, wanted: ReadonlySet<number>): PlayedPart | null {
  const all = decodeRanges(part.ordinals);
  const own = all.filter((ordinal) => wanted.has(ordinal));
  if (own.length === all.length) return part;
  if (own.length === 0) return null;
  return { ...part, ordinals: encodeRanges(own), filtered: restrictFiltered(part.filtered, new Set(own)) };
}

/** Only these groups are kept, or have ended; counts stay as they are. */
export function restrictFiltered(filtered: FilteredGroups, wanted: ReadonlySet<number>): FilteredGroups {
  const { kept, ended } = filtered;
  const among = (ranges: string): string => encodeRanges(decodeRanges(ranges).filter((ordinal) => wanted.has(ordinal)));
  const left = Object.entries(ended).map(([state, ranges = '']) => [state, among(ranges)] as const);
  return {
    ...filtered,
    kept: restrictKept(kept, (ordinal) => wanted.has(ordinal)),
    ended: Object.fromEntries(left.filter(([, ranges]) => ranges !== '')),
  };
}

/** Keeps only some of the groups. */
export function restrictKept(kept: KeptGroups, isWanted: (ordinal: number) => boolean): KeptGroups {
  const all = decodeRanges(kept.ordinals);
  const own = all.filter(isWanted);
  if (own.length === all.length) return kept;
  const { sizes, oldest } = kept;
  const ofOwn = (values: readonly number[]): number[] => values.filter((_, i) => isWanted(all[i]!));
  return {
    ...kept,
    ordinals: encodeRanges(own),
    ...present({ sizes: sizes && ofOwn(sizes), oldest: oldest && ofOwn(oldest) }),
  };
}
