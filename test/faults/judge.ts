import assert from 'node:assert/strict';
import type { Judged } from './row.ts';

/** How a cell is judged where its row does not say otherwise: the weights and the ledger of the undisturbed run. */
export function judgeByWeights({ summary, weights, undisturbed }: Judged): void {
  assert.deepEqual(summary.ledger.counts, undisturbed.summary.ledger.counts);
  assert.equal(summary.policyDigest, undisturbed.summary.policyDigest, 'the weights of the undisturbed run');
  assert.equal(weights, undisturbed.weights, 'sha256 of the weights of the undisturbed run');
}
