import { layout, stepOf } from '../core/layout.ts';
import { auditLedger, countsByKind } from '../core/rl/ledger.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { requireCommit, storeOf } from './run-access.ts';

/** Proves from the commits alone that the groups issued are the groups accounted for. */
export async function auditRun({ run }: { readonly run: RunHandle }) {
  const keys = await storeOf(run).list(layout.commits(run.lineage));
  const steps = keys
    .map(stepOf)
    .filter((step) => step !== null)
    .sort((a, b) => a - b);
  const commits = await Promise.all(steps.map(async (step) => (await requireCommit(run, step)).commit.outcomes));
  const { issued, pending, counts, isSound, holes, duplicates } = auditLedger(commits);
  return {
    issued,
    pending,
    counts: countsByKind(counts),
    isSound,
    holes: holes.slice(0, 20),
    duplicates: duplicates.slice(0, 20),
  };
}
