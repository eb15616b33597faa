/** Cells of the fault matrix as tests on one stage, after the undisturbed run that they are compared with. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { type Cell, runCell, sampledAgain, stepsOfRun } from './cells.ts';
import { FaultStage, type RunSummary } from './stage.ts';

export function testCells(cells: readonly Cell[]): void {
  let stage: FaultStage;
  let undisturbed: RunSummary;

  before(async () => {
    stage = await FaultStage.open();
  });
  after(() => stage?.close());

  test('the undisturbed run samples everything once', async () => {
    stage.clear();
    const run = await stage.start('undisturbed', { steps: stepsOfRun });
    undisturbed = await run.handle.result();
    assert.ok(undisturbed.ledger.isSound);
    assert.ok((undisturbed.ledger.counts['trained'] ?? 0) > 0);
    assert.ok(run.sampled().length > 0);
    assert.equal(sampledAgain(run), 0);
  });

  for (const cell of cells) {
    test(`${cell.row}, ${cell.column}: the same weights, nothing trained twice, nothing sampled again`, async (t) => {
      const { inFlight, seconds } = await runCell(stage, cell, undisturbed);
      t.diagnostic(`${seconds.toFixed(1)} s to the end, ${inFlight} rollouts lost in flight`);
    });
  }
}
