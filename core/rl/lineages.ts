import { addEffects, type EffectCounts } from './rollout/effects.ts';
import { addCounts, auditLedger, decodeRanges, type LedgerAudit, type StepOutcomes } from './ledger.ts';

/** End states of a run's groups over all of its lineages, from their commits alone. */

export interface LineageCommits {
  readonly lineage: string;
  /** The lineage and step it took over from; null when it began with a model, or in another run. */
  readonly origin: { readonly lineage: string; readonly step: number } | null;
  /** The step of its first commit. */
  readonly first: number;
  /** Ascending by step. */
  readonly commits: readonly StepOutcomes[];
}

export interface LineageAudit extends LedgerAudit {
  readonly lineage: string;
  readonly origin: LineageCommits['origin'];
  readonly first: number;
  readonly last: number;
  /** Its own groups that the current lineage did not take over. */
  readonly superseded: number;
  /** Ordinals whose state differs from that in the lineage it took over from. */
  readonly takenOverWrongly: readonly number[];
}

export interface RunAudit {
  readonly lineages: readonly LineageAudit[];
  readonly current: string;
  /** Groups issued by all lineages, each once. */
  readonly issued: number;
  /** End states of the groups that the current lineage issued or took over. */
  readonly counts: Readonly<Record<string, number>>;
  readonly pending: number;
  /** Groups left behind by rewinds. */
  readonly superseded: number;
  /** Timed-out rollouts of all lineages, by environment. */
  readonly timedOut: Readonly<Record<string, number>>;
  /** Effects of the rollouts of all lineages, by kind and outcome. */
  readonly effects: EffectCounts;
  /** Every lineage is sound, and issued = Σ counts + pending + superseded. */
  readonly isSound: boolean;
}

/** `lineages` in the order they were begun; the last is the current one. */
export function auditLineages(lineages: readonly LineageCommits[]): RunAudit {
  const byName = new Map(lineages.map((lineage) => [lineage.lineage, lineage]));
  const current = lineages.at(-1);
  const states = current === undefined ? new Map<number, Place>() : placesIn(current, Infinity, byName);
  const audits = lineages.map((lineage): LineageAudit => {
    const audit = auditLedger(lineage.commits, lineage.first);
    const takenOverWrongly = wronglyTakenOver(lineage, byName);
    const alive = [...states.values()].filter((place) => place.issuedBy === lineage.lineage).length;
    return {
      ...audit,
      isSound: audit.isSound && takenOverWrongly.length === 0,
      lineage: lineage.lineage,
      origin: lineage.origin,
      first: lineage.first,
      last: lineage.commits.at(-1)?.step ?? lineage.first,
      superseded: ownGroups(lineage).size - alive,
      takenOverWrongly,
    };
  });

  const counts: Record<string, number> = {};
  let pending = 0;
  for (const { state } of states.values()) {
    if (state === 'pending') pending += 1;
    else counts[state] = (counts[state] ?? 0) + 1;
  }
  const superseded = audits.reduce((sum, audit) => sum + audit.superseded, 0);
  const issued = lineages.reduce((sum, lineage) => sum + ownGroups(lineage).size, 0);
  const accounted = Object.values(counts).reduce((sum, count) => sum + count, 0) + pending + superseded;
  return {
    lineages: audits,
    current: current?.lineage ?? '',
    issued,
    counts,
    pending,
    superseded,
    timedOut: audits.map(({ timedOut }) => timedOut).reduce(addCounts, {}),
    effects: addEffects(audits.map(({ effects }) => effects)),
    isSound: audits.every(({ isSound }) => isSound) && issued === accounted,
  };
}

/** A group's state: its end state or `pending`, and the lineage that issued it. */
interface Place {
  readonly state: string;
  readonly issuedBy: string;
}

function placesIn(
  lineage: LineageCommits,
  upTo: number,
  byName: ReadonlyMap<string, LineageCommits>,
): Map<number, Place> {
  const source = lineage.origin && byName.get(lineage.origin.lineage);
  const places = source ? placesIn(source, lineage.origin.step, byName) : new Map<number, Place>();
  for (const commit of lineage.commits) {
    if (commit.step > upTo) break;
    for (const ordinal of decodeRanges(commit.issued)) {
      if (!places.has(ordinal)) places.set(ordinal, { state: 'pending', issuedBy: lineage.lineage });
    }
    for (const [state, ranges] of Object.entries(commit.ended)) {
      if (source && state === 'inherited') continue; // how it ended is known from there
      for (const ordinal of decodeRanges(ranges ?? '')) {
        const issuedBy = places.get(ordinal)?.issuedBy ?? lineage.lineage;
        places.set(ordinal, { state, issuedBy });
      }
    }
  }
  return places;
}

/** Groups that the lineage issued itself. The first commit after a rewind or fork lists the groups issued before it. */
function ownGroups({ origin, commits }: LineageCommits): Set<number> {
  return new Set(commits.slice(origin === null ? 0 : 1).flatMap((commit) => decodeRanges(commit.issued)));
}

function wronglyTakenOver(lineage: LineageCommits, byName: ReadonlyMap<string, LineageCommits>): number[] {
  const source = lineage.origin && byName.get(lineage.origin.lineage);
  const [first] = lineage.commits;
  if (!source || !first) return [];
  const left = placesIn(source, lineage.origin.step, byName);
  const wasPending = (ordinal: number) => left.get(ordinal)?.state === 'pending';
  const inherited = decodeRanges(first.ended.inherited ?? '');
  const pending = new Set(decodeRanges(first.pending));
  const dropped = new Set(decodeRanges(first.ended.superseded ?? ''));
  const wrong = [
    ...inherited.filter((ordinal) => !left.has(ordinal) || wasPending(ordinal)),
    ...[...pending, ...dropped].filter((ordinal) => !wasPending(ordinal)),
    ...[...left.keys()].filter((ordinal) => wasPending(ordinal) && !pending.has(ordinal) && !dropped.has(ordinal)),
    ...decodeRanges(first.issued).filter((ordinal) => !left.has(ordinal)),
  ];
  return [...new Set(wrong)].sort((a, b) => a - b);
}
