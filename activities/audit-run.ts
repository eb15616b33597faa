import { layout, stepOf } from '../core/layout.ts';
import { auditLedger, countsByKind } from '../core/rl/ledger.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { requireCommit, storeOf } from './run-access.ts';

/** Proves from the commits alone that they are one chain, and that the groups issued are the groups accounted for. */
export async function auditRun({ run }: { readonly run: RunHandle }) {
  const keys = await storeOf(run).list(layout.commits(run.lineage));
  const steps = keys
    .map(stepOf)
    .filter((step) => step !== null)
    .sort((a, b) => a - b);
  const found = await Promise.all(steps.map((step) => requireCommit(run, step)));
  const { issued, pending, counts, isSound, holes, duplicates } = auditLedger(
    found.map(({ commit }) => commit.outcomes),
  );
  // Each commit names the bytes of the one before it: a commit that was changed or taken away breaks the chain after it.
  const brokenLinks = found
    .filter(({ commit }, i) => commit.parent !== (found[i - 1]?.sha256 ?? null))
    .map(({ commit }) => commit.step);
  return {
    issued,
    pending,
    counts: countsByKind(counts),
    isSound: isSound && brokenLinks.length === 0,
    brokenLinks: brokenLinks.slice(0, 20),
    holes: holes.slice(0, 20),
    duplicates: duplicates.slice(0, 20),
  };
}
