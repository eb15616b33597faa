/** `npm run test:faults`: every cell of the matrix; RATCHET_FAULTS names a part of it (", score", "GPU worker"). */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { type Column, columns, type RowName, rows, runCell, sampledAgain, stepsOfRun } from './cells.ts';
import { FaultStage, type RunSummary } from './stage.ts';

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

const only = process.env['RATCHET_FAULTS'];
for (const row of Object.keys(rows) as RowName[]) {
  for (const column of Object.keys(columns) as Column[]) {
    const name = `${row}, ${column}`;
    if (only !== undefined && !name.includes(only)) continue;
    test(name, async (t) => {
      const { inFlight, seconds } = await runCell(stage, { row, column }, undisturbed);
      t.diagnostic(`${seconds.toFixed(1)} s to the end, ${inFlight} rollouts lost in flight`);
    });
  }
}
