/** The fault matrix's row of upgrades: a run is held in the middle of a step, and another version takes it over. */
import assert from 'node:assert/strict';
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { sampledAgain, columns, type Column, countInFlight, stepsOfRun } from './cells.ts';
import { FaultStage, type RunSummary } from './stage.ts';
import { otherOrder, type OtherVersion, previousCommit, thisVersion, UpgradeStage } from './upgrade.ts';

let undisturbed: RunSummary;
let other: OtherVersion;
const previous = await previousCommit();

before(async () => {
  other = await otherOrder();
  const stage = await FaultStage.open();
  try {
    undisturbed = await (await stage.start('undisturbed', { steps: stepsOfRun })).handle.result();
  } finally {
    await stage.close();
  }
});
after(async () => {
  for (const version of [other, previous]) {
    if (typeof version !== 'string') await rm(version.folder, { recursive: true, force: true });
  }
});

/** Begins a run by one version, holds it in the gap of a column, and lets this version end it. */
async function upgradeIn(column: Column, version: OtherVersion) {
  const gap: { readonly failpoint: string; readonly at: number; readonly sampleMs?: number } = columns[column];
  const stage = await UpgradeStage.open();
  try {
    await stage.startStack(version);
    await stage.plan(gap.failpoint, { at: gap.at, action: 'hold' });
    await stage.start('run', { steps: stepsOfRun, ...(gap.sampleMs === undefined ? {} : { sampleMs: gap.sampleMs }) });
    await stage.fired(gap.failpoint);
    const run = { name: 'run', sampled: () => stage.sampled('run') };
    await stage.startStack(thisVersion);
    const inFlight = countInFlight(stage, run);
    const { said } = stage;
    const summary = await stage.handle('run').result();
    return { said, summary, regenerated: sampledAgain(run), inFlight };
  } finally {
    await stage.close();
  }
}

function checkEnd({ summary, regenerated, inFlight }: Awaited<ReturnType<typeof upgradeIn>>): void {
  assert.equal(summary.step, stepsOfRun);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
  assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
  assert.equal(summary.policyDigest, undisturbed.policyDigest, 'the weights of the undisturbed run');
  assert.ok(regenerated <= inFlight, `${regenerated} rollouts were sampled again, ${inFlight} were lost in flight`);
}

describe('upgrade from a version whose steps came in another order', () => {
  for (const column of ['warm-up', 'generate', 'train', 'commit'] as const) {
    test(`in the gap of ${column}: it is said, and the run ends with the same weights`, async () => {
      const result = await upgradeIn(column, other);
      assert.match(result.said, /upgrade: run run goes on from its newest commit under the new code/);
      checkEnd(result);
    });
  }
});

describe(
  "upgrade from the previous commit's version",
  { skip: typeof previous === 'string' ? previous : false },
  () => {
    for (const column of ['generate', 'train', 'commit'] as const) {
      test(`in the gap of ${column}: the run ends with the same weights`, async (t) => {
        if (typeof previous === 'string') return;
        for (const note of previous.notes) t.diagnostic(note);
        checkEnd(await upgradeIn(column, previous));
      });
    }
  },
);

describe('what was asked of a run outlives an upgrade', () => {
  let stage: UpgradeStage;
  before(async () => {
    stage = await UpgradeStage.open();
  });
  after(() => stage.close());

  test('a pause with its reason, a learning rate, and where to stop', async () => {
    await stage.startStack(other);
    await stage.start('asked', { steps: 9 });
    await stage.status('asked', ({ step }) => step >= 1);
    const tell = (update: string, value: string | number) =>
      stage.handle('asked').executeUpdate<string, [string | number]>(update, { args: [value] });
    await tell('pause', 'looking at it');
    const still = await stage.status('asked', ({ waitingOn }) => waitingOn.length === 0);
    await tell('set-learning-rate', 5e-5);
    await tell('stop-after', still.step + 2);
    // The config is read when a run is started, not when it goes on.
    await rm(path.join(stage.folder, 'asked.toml'));

    await stage.startStack(thisVersion);
    const status = await stage.status('asked', ({ phase }) => phase === 'paused');
    assert.deepEqual([status.pausedBecause, status.learningRate, status.step], ['looking at it', 5e-5, still.step]);
    await tell('resume', '');
    const summary = await stage.handle('asked').result();
    assert.equal(summary.step, still.step + 2);
    assert.ok(summary.ledger.isSound);
  });

  test('a rewind that was waiting for its step to end, once, also when there are two upgrades', async () => {
    await stage.startStack(other);
    await stage.plan('trainStep.done', { at: 3, action: 'hold' });
    await stage.start('back', { steps: 4 });
    await stage.fired('trainStep.done');
    await stage.handle('back').executeUpdate<string, [number]>('rewind', { args: [1] });

    await stage.startStack(thisVersion);
    await stage.status('back', ({ lineage, step }) => lineage === 'l2' && step >= 2);
    await stage.startStack(other);
    await stage.startStack(thisVersion);
    const summary = await stage.handle('back').result();
    assert.deepEqual([summary.step, summary.ledger.isSound], [4, true]);
    const status = await stage.status('back', () => true);
    assert.equal(status.lineage, 'l2');
  });
});

test('a terminal that follows a run goes on following it when new code takes it over', async () => {
  const stage = await UpgradeStage.open();
  const version = await otherOrder();
  try {
    await stage.writeConfig('followed', { steps: 6 });
    const train = stage.command(version, 'train', 'followed.toml');
    await train.says(/step 2 of 6/);
    await writeFile(path.join(version.folder, 'workflows/index.ts'), "export { trainRun } from './train-run.ts';\n");
    process.kill(stage.pid('orchestrator-worker'), 'SIGKILL');
    const code = await train.ended;
    assert.equal(code, 0, train.said);
    assert.match(train.said, /upgrade: run followed goes on/);
    assert.match(train.said, /done: step 6 of 6/);
  } finally {
    await stage.close();
    await rm(version.folder, { recursive: true, force: true });
  }
});
