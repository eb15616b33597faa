/**
 * What became of every group. A group that was issued ends in exactly one state or is pending; the commits of a lineage
 * prove it, each naming the ordinals it issued, ended and left open as ranges ("1-4,7,9-12"), whatever the batch size.
 */

/** A kind, or a kind and its reason: `filtered:too_easy`, `filtered:surplus`, `failed:infra_failure`. */
export type EndState =
  'trained' | 'stale' | 'refused' | 'superseded' | `filtered:${string}` | `failed:${string}` | `cancelled:${string}`;

/** A state that nothing reached is left out. */
export type EndedRanges = { readonly [state in EndState]?: string };

export interface StepOutcomes {
  readonly step: number;
  /** Ordinals issued since the commit before. */
  readonly issued: string;
  /** Ordinals that reached their end since the commit before, by end state. */
  readonly ended: EndedRanges;
  /** Ordinals that are open at this commit: issued by now, not ended. */
  readonly pending: string;
}

export interface LedgerAudit {
  /** Distinct ordinals issued. */
  readonly issued: number;
  /** Groups by end state. */
  readonly counts: Readonly<Record<string, number>>;
  /** Groups open at the last commit. */
  readonly pending: number;
  /** Ordinals that are unaccounted for: never issued though later ones were, ended without being issued, or lost. */
  readonly holes: readonly number[];
  /** Ordinals issued twice, ended twice, or both ended and pending. */
  readonly duplicates: readonly number[];
  /** No holes, no duplicates: then issued = Σ counts + pending. */
  readonly isSound: boolean;
}

/** The record a step's commit carries. `pendingBefore` is what the commit before left open. */
export function recordOutcomes(input: {
  readonly step: number;
  readonly pendingBefore: readonly number[];
  readonly issued: readonly number[];
  readonly ended: readonly { readonly ordinal: number; readonly state: EndState }[];
}): StepOutcomes {
  const { step, pendingBefore, issued, ended } = input;
  const endedOrdinals = new Set(ended.map(({ ordinal }) => ordinal));
  const states = [...new Set(ended.map(({ state }) => state))].sort();
  const inState = (state: EndState) => ended.filter((end) => end.state === state).map(({ ordinal }) => ordinal);
  return {
    step,
    issued: encodeRanges(issued),
    ended: Object.fromEntries(states.map((state) => [state, encodeRanges(inState(state))])),
    pending: encodeRanges([...pendingBefore, ...issued].filter((ordinal) => !endedOrdinals.has(ordinal))),
  };
}

/**
 * Checks a lineage's commits, in order, from its first. Ordinals are given out from 1 without gaps; every one of them
 * must have been issued once and have ended once or be pending at the last commit.
 */
export function auditLedger(commits: readonly StepOutcomes[]): LedgerAudit {
  const issued = countEach(commits.flatMap((commit) => decodeRanges(commit.issued)));
  const ended = countEach(
    commits.flatMap((commit) => Object.values(commit.ended).flatMap((ranges) => decodeRanges(ranges ?? ''))),
  );
  const pending = countEach(decodeRanges(commits.at(-1)?.pending ?? ''));

  const counts: Record<string, number> = {};
  for (const commit of commits) {
    for (const [state, ranges] of Object.entries(commit.ended)) {
      counts[state] = (counts[state] ?? 0) + decodeRanges(ranges ?? '').length;
    }
  }

  const holes: number[] = [];
  const duplicates: number[] = [];
  const last = Math.max(0, ...[issued, ended, pending].map(largestKey));
  for (let ordinal = 1; ordinal <= last; ordinal++) {
    const timesIssued = issued.get(ordinal) ?? 0;
    const timesAccounted = (ended.get(ordinal) ?? 0) + (pending.get(ordinal) ?? 0);
    if (timesIssued === 0 || timesAccounted === 0) holes.push(ordinal);
    if (timesIssued > 1 || timesAccounted > 1) duplicates.push(ordinal);
  }
  const isSound = holes.length === 0 && duplicates.length === 0;
  return { issued: issued.size, counts, pending: pending.size, holes, duplicates, isSound };
}

/** Sums end states by kind: `filtered:too_easy` and `filtered:surplus` both count as `filtered`. */
export function countsByKind(counts: Readonly<Record<string, number>>): Record<string, number> {
  const kinds: Record<string, number> = {};
  for (const [state, count] of Object.entries(counts)) {
    const kind = state.split(':', 1)[0]!;
    kinds[kind] = (kinds[kind] ?? 0) + count;
  }
  return kinds;
}

/** "1-4,7" for 1, 2, 3, 4, 7 in any order; a repeated number is written again, so that a duplicate cannot hide. */
export function encodeRanges(ordinals: readonly number[]): string {
  const sorted = [...ordinals].sort((a, b) => a - b);
  const ranges: [first: number, last: number][] = [];
  for (const ordinal of sorted) {
    const open = ranges.at(-1);
    if (open !== undefined && ordinal === open[1] + 1) open[1] = ordinal;
    else ranges.push([ordinal, ordinal]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',');
}

/** The numbers of an encoded range, ascending. Refuses what `encodeRanges` does not write. */
export function decodeRanges(text: string): number[] {
  if (text === '') return [];
  return text.split(',').flatMap((part) => {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part);
    const first = Number(match?.[1]);
    const last = Number(match?.[2] ?? match?.[1]);
    if (match === null || last < first) throw new Error(`Not a range of ordinals: "${part}" in "${text}".`);
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  });
}

function countEach(ordinals: readonly number[]): Map<number, number> {
  const times = new Map<number, number>();
  for (const ordinal of ordinals) times.set(ordinal, (times.get(ordinal) ?? 0) + 1);
  return times;
}

function largestKey(times: ReadonlyMap<number, number>): number {
  let largest = 0;
  for (const ordinal of times.keys()) largest = Math.max(largest, ordinal);
  return largest;
}
