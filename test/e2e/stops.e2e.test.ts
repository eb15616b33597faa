/**
 * Runs that stand still, are stopped with everything, or are put back by hand: the others continue, nothing is lost or
 * overwritten.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { WorkflowFailedError } from '@temporalio/client';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { layout } from '../../runs/layout.ts';
import { type RunStatus, eventsQuery } from '../../workflows/control/messages.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { sampledAgain } from '../faults/cells.ts';
import { FaultStage, type StagedRun } from '../faults/stage.ts';
import { until } from '../eventually.ts';

const steps = 4;

let stage: FaultStage;
before(async () => {
  stage = await FaultStage.open('of short pauses');
});
after(() => stage?.close());

/** Waits until the run's own account of itself is as wanted. */
async function statusOf({ handle }: StagedRun, isWanted: (status: RunStatus) => boolean): Promise<RunStatus> {
  for (;;) {
    const status = await handle.query<RunStatus>('status').catch(() => null); // no handler before the run is open
    if (status && isWanted(status)) return status;
    await delay(50);
  }
}

async function untilCommitted({ store }: StagedRun, step: number): Promise<void> {
  await until(`step ${step}`, () => store.read(layout.commit('main', step)), { everyMs: 10 });
}

/** Summary of an undisturbed run of `steps` steps; its name does not matter. */
let undisturbed: RunSummary;

test('a run that is paused for long gives its GPU worker to the run that waits for it by name; resumed, it ends with the same weights', async () => {
  stage.plan('train.applied', { at: 2, action: 'hold' });
  const first = await stage.start('first', { steps });
  await stage.fired('train.applied', first);
  const second = await stage.start('second', { steps });
  const waitsFor = ({ waitingOn }: RunStatus): string =>
    waitingOn.find(({ what }) => what.includes('busy with run'))?.what ?? '';
  const waiting = await statusOf(second, (status) => waitsFor(status) !== '');
  assert.match(waitsFor(waiting), /^a GPU worker: 1 known, busy with run first$/);

  await first.handle.executeUpdate('pause', { args: ['looking at it'] });
  stage.release('train.applied');
  undisturbed = await second.handle.result();
  assert.deepEqual([undisturbed.step, undisturbed.ledger.isSound], [steps, true]);
  const { step, pausedBecause } = await statusOf(first, () => true);
  assert.deepEqual([step, pausedBecause], [2, 'looking at it']);

  await first.handle.executeUpdate('resume');
  const summary = await first.handle.result();
  assert.deepEqual([summary.step, summary.ledger], [steps, undisturbed.ledger]);
  assert.equal(summary.policyDigest, undisturbed.policyDigest);
  const events = await first.handle.query(eventsQuery, 0);
  assert.ok(!events.some(({ text }) => text.includes('is lost')), 'the worker was given back');
});

test('all processes stopped in the middle of a step: workers end before the server, within 5 s, and nothing is lost or sampled again', async () => {
  stage.clear();
  const run = await stage.start('stopped', { steps, sampleMs: 1_500 });
  await untilCommitted(run, 1);
  const sampledBefore = run.sampled().length;
  await until('four more rollouts', () => run.sampled().length >= sampledBefore + 4, { everyMs: 10 });
  const { logFolder } = stage.stack;
  const startedAtMs = performance.now();
  await stage.restart(() => {
    const stopMs = performance.now() - startedAtMs;
    assert.ok(stopMs < 5_000, `stopped after ${Math.round(stopMs)} ms`);
    assert.ok(run.sampled().length < 2 * 32, 'it was in the middle of a step');
    const lastLine = (name: string): string =>
      readFileSync(path.join(logFolder, name), 'utf8').trim().split('\n').at(-1)!;
    const endOf = (name: string): string => /\d{4}-\d\d-\d\dT[\d:.]+Z/.exec(lastLine(name))![0];
    for (const name of ['orchestrator-worker.log', 'rollout-worker.log', 'train-worker.log', 'policy-server.log']) {
      assert.ok(endOf(name) <= endOf('temporal-server.log'), `${name}: ${lastLine(name)}`);
    }
    return Promise.resolve();
  });
  const summary = await stage.client.workflow.getHandle<typeof trainRun>('stopped').result();
  assert.deepEqual([summary.step, summary.ledger], [steps, undisturbed.ledger]);
  assert.equal(summary.policyDigest, undisturbed.policyDigest);
  assert.equal(sampledAgain(run), 0);
});

test('a workflow that is reset to an earlier point stops, names the rewind, and overwrites nothing; trained again the run continues', async () => {
  const run = await stage.start('reset', { steps: 6, sampleMs: 200, overrides: { 'checkpoints.keep_last': '9' } });
  await untilCommitted(run, 3);
  const folder = path.join(stage.folder, 'outputs/reset');
  const before = contentsOf(folder);
  await stage.client.workflowService.resetWorkflowExecution({
    namespace: 'default',
    workflowExecution: { workflowId: 'reset' },
    workflowTaskFinishEventId: await planningTask(run, 2),
    reason: 'a person does it by hand',
    requestId: 'reset-1',
  });
  const handle = stage.client.workflow.getHandle('reset');
  const failure: unknown = await handle.result().catch((error: unknown) => error);
  assert.ok(failure instanceof WorkflowFailedError);
  const causes = rootMessage(failure);
  assert.match(causes, /Temporal's state of the run reset is behind its store, as after `temporal workflow reset`/);
  assert.match(
    causes,
    /about to make step 2 of main, but step 2 was committed at .*ratchet-rl rewind reset --step 1$/m,
  );
  const now = contentsOf(folder);
  for (const [file, digest] of before) assert.equal(now.get(file), digest, file);

  const { step, ledger } = await (await stage.startAgain(run)).handle.result();
  assert.deepEqual([step, ledger.isSound], [6, true]);
});

/** The workflow task in which a run asked for the plan and the training of a step. */
async function planningTask({ handle }: StagedRun, step: number) {
  const { events } = await handle.fetchHistory();
  const planned = (events ?? []).flatMap(({ activityTaskScheduledEventAttributes: scheduled }) =>
    scheduled?.activityType?.name === 'trainBatch' ? [scheduled.workflowTaskCompletedEventId] : [],
  );
  return planned[step - 1]!;
}

/**
 * sha256 of every file below a folder but logs, which grow, and those that vanish: what is on its way to its place, and
 * what retention removes of a round (all but its scored groups).
 */
function contentsOf(folder: string): Map<string, string> {
  const isInMotion = (file: string): boolean =>
    file.includes('/logs/') ||
    file.includes('/pending/') ||
    (file.includes('/rollouts/') && !file.includes('.scored.')) ||
    file.endsWith('metrics.jsonl') ||
    path.basename(file).includes('.tmp');
  const files = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name))
    .filter((file) => !isInMotion(file));
  return new Map(files.map((file) => [file, createHash('sha256').update(readFileSync(file)).digest('hex')]));
}
