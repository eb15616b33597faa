import { layout } from '../runs/layout.ts';
import { firstLineage } from '../core/names.ts';
import { effectivenessOf, type Effectiveness } from '../core/rl/effectiveness.ts';
import { countsByKind } from '../core/rl/ledger.ts';
import { auditLineages, type LineageAudit, type RunAudit } from '../core/rl/lineages.ts';
import type { LineageOrigin, RunHandle } from '../core/rl/run-state.ts';
import { isMetricsRow } from '../runs/metrics/metrics.ts';
import { decodeStored } from '../runs/forms/stored-forms.ts';
import { type CheckpointManifest, sealedSteps } from '../runs/versions/checkpoints.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import {
  begunLineages,
  committedSteps,
  type FoundCommit,
  type LineagePlace,
  requireCommit,
  type RunPlace,
  storeOf,
} from '../runs/run-access.ts';

/** Limit for named findings: the first few show the problem. */
const namedMax = 20;

export interface AuditedLineage extends LineageAudit {
  /** Commits that do not continue the one before them: one of the two was changed or removed. */
  readonly brokenLinks: readonly number[];
  /** Origin of the lineage: another run's name for a fork. */
  readonly from: LineageOrigin | null;
  readonly effectiveness: Effectiveness;
}

export interface RunReport extends Omit<RunAudit, 'lineages'> {
  readonly run: string;
  readonly lineages: readonly AuditedLineage[];
}

/** Audits a run at its end: the fates of its lineage's groups, and whether its whole record is sound. */
export async function auditRun({ run }: { readonly run: RunHandle }) {
  const report = await withHeartbeat(() => auditStore(run)); // every commit is read
  const of = (name: 'holes' | 'duplicates' | 'brokenLinks'): number[] =>
    report.lineages.flatMap((lineage) => lineage[name]).slice(0, namedMax);
  const lineage = report.lineages.find((audited) => audited.lineage === run.lineage);
  const effectiveness = lineage?.effectiveness ?? effectivenessOf([]);
  return {
    issued: lineage?.issued ?? 0,
    pending: lineage?.pending ?? 0,
    counts: countsByKind(lineage?.counts ?? {}),
    isSound: report.isSound,
    brokenLinks: [
      ...of('brokenLinks'),
      ...report.lineages.flatMap(({ missingSteps }) => missingSteps.map((step) => step + 1)),
    ]
      .filter((step, i, all) => all.indexOf(step) === i)
      .slice(0, namedMax),
    holes: of('holes'),
    duplicates: of('duplicates'),
    effectiveness,
  };
}

/** Proves from commits only that each lineage is one chain, and that all issued groups are accounted for. */
export async function auditStore(run: RunPlace): Promise<RunReport> {
  const begun = await begunLineages(run);
  const places: { place: LineagePlace; origin: LineageOrigin | null }[] = [
    { place: { ...run, lineage: firstLineage }, origin: null },
    ...begun.map(({ lineage, origin }) => ({ place: { ...run, lineage }, origin })),
  ];
  const read = await Promise.all(places.map(({ place, origin }) => readLineage(place, origin)));
  const audit = auditLineages(
    read.map(({ lineage, from, first, found }) => ({
      lineage,
      origin: from?.run === run.name ? { lineage: from.lineage, step: from.step } : null,
      first,
      commits: found.map(({ commit }) => commit.outcomes),
    })),
  );
  const lineages = audit.lineages.map((lineage, i): AuditedLineage => {
    const { from, brokenLinks, lostSteps, found } = read[i]!;
    const effectiveness = effectivenessOf(found.map(({ commit }) => commit));
    const missingSteps = [...new Set([...lineage.missingSteps, ...lostSteps])].sort((a, b) => a - b);
    const isSound = lineage.isSound && brokenLinks.length === 0 && missingSteps.length === 0;
    return { ...lineage, from, brokenLinks, missingSteps, isSound, effectiveness };
  });
  return { ...audit, run: run.name, lineages, isSound: audit.isSound && lineages.every(({ isSound }) => isSound) };
}

async function readLineage(place: LineagePlace, recorded: LineageOrigin | null) {
  // Reads objects written after a commit before it reads the commits: a running run adds more meanwhile.
  const manifests = await Promise.all(
    (await sealedSteps(storeOf(place), place.lineage)).map((n) => manifestAt(place, n)),
  );
  const recordedSteps = await metricSteps(place);
  const found = await Promise.all((await committedSteps(place)).map((step) => requireCommit(place, step)));
  const first = found[0]?.commit;
  const from = recorded ?? first?.origin ?? null;
  const source = from?.run === place.name ? await sourceOf(place, from) : null;
  const last = found.at(-1)?.commit.step ?? -1;
  const brokenLinks = found
    .filter(({ commit }, i) => {
      const before = found[i - 1];
      if (before === undefined && commit.origin) {
        return from?.sha256 !== commit.origin.sha256 || (source !== null && source.sha256 !== commit.origin.sha256);
      }
      return commit.parent !== (before?.sha256 ?? null);
    })
    .map(({ commit }) => commit.step);
  // The newest commit has no child that names it: its checkpoint does, and its metrics were written after it.
  const changed = found
    .slice(-1)
    .filter(({ commit, sha256 }) =>
      manifests.some((manifest) => manifest?.step === commit.step && manifest.commit !== sha256),
    );
  const witnesses = [...manifests.flatMap((manifest) => manifest?.step ?? []), ...recordedSteps];
  const lostSteps = [...new Set(witnesses)].filter((step) => step > last);
  return {
    lineage: place.lineage,
    from,
    first: from?.step ?? 0,
    found,
    brokenLinks: [...new Set([...brokenLinks, ...changed.map(({ commit }) => commit.step)])].sort((a, b) => a - b),
    lostSteps,
  };
}

async function sourceOf(place: LineagePlace, { lineage, step }: LineageOrigin): Promise<FoundCommit | null> {
  const steps = await committedSteps({ ...place, lineage });
  return steps.includes(step) ? requireCommit({ ...place, lineage }, step) : null;
}

/** A manifest as far as it can be read: a damaged one proves nothing against a commit. */
async function manifestAt(place: LineagePlace, step: number): Promise<CheckpointManifest | null> {
  const key = `${layout.checkpoint(place.lineage, step)}manifest.json`;
  const bytes = await storeOf(place).read(key);
  try {
    const manifest = bytes && decodeStored<CheckpointManifest>(bytes, key);
    return manifest?.step === step && manifest.lineage === place.lineage ? manifest : null;
  } catch {
    return null;
  }
}

/** Steps of this lineage that have a row in `metrics.jsonl`, which is written after the commit. */
async function metricSteps({ lineage, ...run }: LineagePlace): Promise<number[]> {
  const bytes = await storeOf(run).read(layout.metrics());
  const lines = bytes ? Buffer.from(bytes).toString('utf8').split('\n') : [];
  return lines.flatMap((line) => {
    try {
      const row: unknown = JSON.parse(line);
      return isMetricsRow(row) && row.lineage === lineage ? [row.step] : [];
    } catch {
      return []; // half a line, which its writer left behind
    }
  });
}
