/** How the end of a run with a fault in it is judged. */
import assert from 'node:assert/strict';
import type { Judged } from './row.ts';
import type { StagedRun } from './stage.ts';

export function judgeByWeights({ summary, weights, undisturbed }: Judged): void {
  assert.deepEqual(summary.ledger.counts, undisturbed.summary.ledger.counts);
  assert.equal(summary.policyDigest, undisturbed.summary.policyDigest, 'the weights of the undisturbed run');
  assert.equal(weights, undisturbed.weights, 'sha256 of the weights of the undisturbed run');
}

/** Answers beyond the first at a place of the run. */
export function sampledAgain(run: StagedRun): number {
  const lines = run.sampled();
  return lines.length - new Set(lines.map(({ seed, policy }) => `${policy} ${seed}`)).size;
}
