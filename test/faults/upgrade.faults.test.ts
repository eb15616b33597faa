/** Upgrades while runs are open, beyond the rows of the fault matrix: what was asked of a run, and who follows it. */
import assert from 'node:assert/strict';
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { otherOrder, type OtherVersion, thisVersion, UpgradeStage } from './upgrade.ts';

describe('what was asked of a run outlives an upgrade', () => {
  let stage: UpgradeStage;
  let other: OtherVersion;
  before(async () => {
    stage = await UpgradeStage.open();
    other = await otherOrder(stage.folder);
  });
  after(() => stage.close());

  test('a pause with its reason, a learning rate, and where to stop, after it had continued as new', async () => {
    await stage.startStack(other);
    await stage.start('asked', { steps: 9 });
    const tell = (update: string, value: unknown) =>
      stage.handle('asked').executeUpdate<string, [unknown]>(update, { args: [value] });
    await stage.status('asked', ({ step }) => step >= 2);
    await tell('rewind', 1);
    await stage.status('asked', ({ lineage }) => lineage === 'l2');
    await tell('pause', 'looking at it');
    await tell('set', { learning_rate: 5e-5, stop_after: 6 });
    // The config is read when a run starts, not when it continues.
    await rm(path.join(stage.folder, 'asked.toml'));

    await stage.startStack(thisVersion);
    const status = await stage.status('asked', ({ phase }) => phase === 'paused');
    assert.deepEqual([status.pausedBecause, status.learningRate, status.lineage], ['looking at it', 5e-5, 'l2']);
    assert.ok(status.step < 6, 'it was paused before its last step');
    await tell('resume', '');
    const summary = await stage.handle('asked').result();
    assert.deepEqual([summary.step, summary.ledger.isSound], [6, true]);
  });

  test('a rewind that was waiting for its step to end, once, also when there are two upgrades', async () => {
    await stage.startStack(other);
    await stage.plan('trainBatch.done', { at: 3, action: 'hold' });
    await stage.start('back', { steps: 4 });
    await stage.fired('trainBatch.done');
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

test('a terminal that follows a run continues following it when new code takes it over', async () => {
  const stage = await UpgradeStage.open();
  const version = await otherOrder(stage.folder);
  try {
    await stage.writeConfig('followed', { steps: 40 }); // it is at work for long enough to be taken over
    const train = stage.command(version, 'train', 'followed.toml');
    await train.says(/step 2 of 40/);
    await writeFile(path.join(version.folder, 'workflows/index.ts'), "export { trainRun } from './train-run.ts';\n");
    process.kill(stage.pid('orchestrator-worker'), 'SIGKILL');
    const code = await train.ended;
    assert.equal(code, 0, train.said);
    assert.match(train.said, /upgrade: run followed continues/);
    assert.match(train.said, /done: step 40 of 40/);
  } finally {
    await stage.close();
  }
});
