import { addEffects, type EffectCounts } from './rollout/effects.ts';

/**
 * The end state of every group. An issued group ends in exactly one state or is pending. The commits of a lineage prove
 * it: each names the ordinals it issued, ended and left open as ranges ("1-4,7,9-12"), whatever the batch size.
 */

/** A kind, or a kind and its reason: `filtered:too_easy`, `filtered:surplus`, `failed:infra_failure`. */
export type EndState =
  | 'trained'
  | 'stale'
  | 'refused'
  /** Left behind by a rewind or a fork. */
  | 'superseded'
  /** Ended before this lineage began; the lineage that it came from records how. */
  | 'inherited'
  | `filtered:${string}`
  | `failed:${string}`
  | `cancelled:${string}`;

/** States without ordinals are left out. */
export type EndedRanges = { readonly [state in EndState]?: string };

export interface StepOutcomes {
  readonly step: number;
  /** Ordinals issued since the previous commit. */
  readonly issued: string;
  /** Ordinals that reached their end since the commit before, by end state. */
  readonly ended: EndedRanges;
  /** Ordinals open at this commit: issued, not ended. */
  readonly pending: string;
  /** Timed-out rollouts by environment, whatever the end states of their groups. Absent if there were none. */
  readonly timedOut?: Readonly<Record<string, number>>;
  /** Effects of the rollouts by kind and outcome, whatever the end states of their groups. Absent if there were none. */
  readonly effects?: EffectCounts;
}

export interface LedgerAudit {
  /** Number of distinct ordinals. */
  readonly issued: number;
  /** Number of groups by end state. */
  readonly counts: Readonly<Record<string, number>>;
  /** Groups open at the last commit. */
  readonly pending: number;
  /** Timed-out rollouts by environment. */
  readonly timedOut: Readonly<Record<string, number>>;
  readonly effects: EffectCounts;
  /** Ordinals that are unaccounted for: not issued when later ones were, ended before they were issued, or lost. */
  readonly holes: readonly number[];
  /** Ordinals issued twice, ended twice, or both ended and pending. */
  readonly duplicates: readonly number[];
  /** Steps between the first and the last that have no commit. */
  readonly missingSteps: readonly number[];
  /** None of the three exist: then issued = Σ counts + pending, at every commit. */
  readonly isSound: boolean;
}

/** The outcomes for a step's commit. `pendingBefore` has the open groups of the previous commit. */
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
 * Checks a lineage's commits, in order, from its first (step `first`). Ordinals are given out from 1 without gaps; every
 * one of them must have been issued once, and at every commit it must have ended once or be pending.
 */
export function auditLedger(commits: readonly StepOutcomes[], first = commits[0]?.step ?? 0): LedgerAudit {
  const issued = new Set<number>();
  const open = new Set<number>();
  const counts: Record<string, number> = {};
  const holes = new Set<number>();
  const duplicates = new Set<number>();
  let next = 1;
  for (const commit of commits) {
    for (const ordinal of decodeRanges(commit.issued)) {
      if (issued.has(ordinal)) duplicates.add(ordinal);
      else open.add(ordinal);
      issued.add(ordinal);
      for (; next < ordinal; next++) holes.add(next);
      next = Math.max(next, ordinal + 1);
    }
    for (const [state, ranges] of Object.entries(commit.ended)) {
      const ended = decodeRanges(ranges ?? '');
      counts[state] = (counts[state] ?? 0) + ended.length;
      for (const ordinal of ended) if (!open.delete(ordinal)) blame(ordinal);
    }
    const pending = decodeRanges(commit.pending);
    const stated = new Set(pending);
    if (stated.size < pending.length) for (const ordinal of repeated(pending)) duplicates.add(ordinal);
    for (const ordinal of open) if (!stated.has(ordinal)) holes.add(ordinal);
    for (const ordinal of stated) if (!open.has(ordinal)) blame(ordinal);
  }
  const missingSteps = stepsBetween(commits, first);
  return {
    issued: issued.size,
    counts,
    pending: new Set(decodeRanges(commits.at(-1)?.pending ?? '')).size,
    timedOut: commits.reduce((sum, commit) => addCounts(sum, commit.timedOut), noCounts),
    effects: addEffects(commits.map(({ effects }) => effects)),
    holes: ascending(holes),
    duplicates: ascending(duplicates),
    missingSteps,
    isSound: holes.size === 0 && duplicates.size === 0 && missingSteps.length === 0,
  };

  /** It ended, or is called pending, and is not open: because it ended before, or because it never began. */
  function blame(ordinal: number): void {
    (issued.has(ordinal) ? duplicates : holes).add(ordinal);
  }
}

/** How many ordinals reached their end, in whatever state. */
export function countEnded(parts: readonly EndedRanges[]): number {
  const ranges = parts.flatMap((ended) => Object.values(ended));
  return ranges.reduce((sum, one = '') => sum + decodeRanges(one).length, 0);
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

/** The numbers of an encoded range, ascending. Throws for a text that `encodeRanges` would not write. */
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

function repeated(ordinals: readonly number[]): number[] {
  return ordinals.filter((ordinal, i) => ordinals.indexOf(ordinal) !== i);
}

type Counts = Readonly<Record<string, number>>;
const noCounts: Counts = {};

/** Adds two counts name by name. */
export function addCounts(counts: Counts, more: Counts = noCounts): Counts {
  const sum: Record<string, number> = { ...counts };
  for (const [name, count] of Object.entries(more)) sum[name] = (sum[name] ?? 0) + count;
  return sum;
}

function stepsBetween(commits: readonly StepOutcomes[], first: number): number[] {
  const there = new Set(commits.map(({ step }) => step));
  const last = Math.max(first - 1, ...there);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i).filter((step) => !there.has(step));
}

function ascending(ordinals: ReadonlySet<number>): number[] {
  return [...ordinals].sort((a, b) => a - b);
}
