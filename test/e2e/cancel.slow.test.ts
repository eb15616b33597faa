import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { CancelledFailure } from '@temporalio/common';
import { WorkflowFailedError } from '@temporalio/client';
import type { trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

const config = smallRun
  .replace('max_async_level = 0', 'max_async_level = 1')
  .replace('max_steps = 12', 'max_steps = 400')
  .replace('batch_size = 32', 'batch_size = 16');

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'told.toml': config });
});
after(() => project?.close());

test('a run that is cancelled while it samples ahead ends at once, and continues when it is started again', async () => {
  const first = await start(400);
  await until('step 3', () => project.commit('told', 3));
  await first.cancel();
  await assert.rejects(
    first.result(),
    (error) => error instanceof WorkflowFailedError && error.cause instanceof CancelledFailure,
  );

  const second = await start(400);
  const { step } = await second.query<{ step: number }>('status');
  const last = step + 4;
  await second.executeUpdate('set', { args: [{ stop_after: last }] });
  const stopped = await second.result();
  assert.equal(stopped.step, last);
  assert.ok(stopped.ledger.isSound, JSON.stringify(stopped.ledger));

  const third = await start(last + 3).then((handle) => handle.result());
  assert.equal(third.step, last + 3, 'stop_after was a wish for the execution that ended');
  assert.ok(third.ledger.isSound, JSON.stringify(third.ledger));
});

/** Resolves when the run can be asked. */
async function start(maxSteps: number) {
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'told',
    taskQueue: 'ratchet',
    args: [{ config: 'told.toml', overrides: { max_steps: String(maxSteps) } }],
  });
  for (;;) {
    const status = await handle.query('status').catch(() => null); // there is no handler before the run is open
    if (status !== null) return handle;
    await delay(50);
  }
}
