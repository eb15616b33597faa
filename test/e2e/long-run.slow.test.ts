import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Worker } from '@temporalio/worker';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { bundleWorkflows } from '../../workers/program/workflow-bundle.ts';
import { auditLedger } from '../../core/rl/ledger.ts';
import { openSmallProject, smallRun } from './small-run.ts';
import { until } from '../eventually.ts';

const steps = 130;
const long = `oversampling_factor = 1.5
${smallRun}
[kl_penalty]
enabled = true
beta = 0.02
target_kl = 0.02
ref_sync_steps = 40
`
  .replace('max_steps = 12', `max_steps = ${steps}`)
  .replace('max_async_level = 0', 'max_async_level = 1')
  .replace('batch_size = 32', 'batch_size = 8')
  .replace('steps = 60', 'steps = 50')
  .replace('interval = 6', 'interval = 50');

test('a long run continues as new, answers what it is told on the way, and its ledger is exact, and its history replays', async () => {
  const project = await openSmallProject({ 'long.toml': long });
  try {
    const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: 'long',
      taskQueue: 'ratchet',
      args: ['long.toml'],
    });
    await until('step 2', () => project.commit('long', 2));
    await assert.rejects(
      handle.executeUpdate('set', { args: [{ learning_rate: -1 }] }),
      'a senseless value is refused',
    );
    await handle.executeUpdate('set', { args: [{ learning_rate: 5e-4 }] });
    await handle.executeUpdate('pause', { args: ['looking at it'] });
    await assert.rejects(handle.executeUpdate('set', { args: [{ stop_after: 1 }] }), 'a step that is over is refused');
    const paused = await untilStill();
    assert.equal(paused.phase, 'paused');
    assert.equal(paused.pausedBecause, 'looking at it');
    assert.equal(await project.commit('long', paused.step + 1), null, 'no step after the pause');
    await handle.executeUpdate('resume', { args: [''] });

    const summary = await handle.result();
    assert.equal(summary.step, steps);
    assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
    const commits = await Promise.all(Array.from({ length: steps + 1 }, (_, step) => project.commit('long', step)));
    const audit = auditLedger(commits.map((commit) => commit!.outcomes));
    assert.ok(audit.isSound);
    assert.ok(
      commits.slice(1).every((commit) => commit!.metrics['off_policy/max']! <= 8),
      'nothing older than max_off_policy_steps was trained',
    );
    assert.equal(commits.at(-1)!.state.overrides.learningRate, 5e-4, 'what it was told outlives continue-as-new');

    assert.deepEqual(
      [0, 39, 40, 120].map((step) => commits[step]!.state.reference.step),
      [0, 0, 40, 120],
      'the reference policy is renewed every 40 steps',
    );
    assert.ok(
      commits.slice(1).every((commit) => Number.isFinite(commit!.metrics['train/kl_divergence'])),
      'the KL to the reference is in every step',
    );
    assert.ok(new Set(commits.map((commit) => commit!.state.klBeta)).size > 1, 'its coefficient follows the target');
    assert.ok(
      commits.some((commit) => commit!.outcomes.pending !== ''),
      'oversampled groups waited for a later step',
    );

    const histories = await historiesOf('long');
    assert.ok(histories.length >= 2, `one execution holds ${steps} steps: it never continued as new`);
    // Concurrent work ended in some order: a replay from the history alone must reproduce it.
    const workflowBundle = await bundleWorkflows();
    for (const history of histories) await Worker.runReplayHistory({ workflowBundle }, history, 'long');

    async function untilStill(): Promise<RunStatus> {
      for (let last = -1; ;) {
        const status = await handle.query<RunStatus>('status');
        if (status.step === last && status.waitingOn.length === 0) return status;
        last = status.step;
        await delay(300);
      }
    }
  } finally {
    await project.close();
  }

  async function historiesOf(workflowId: string) {
    const { workflow } = project.client;
    const histories = [];
    for await (const { runId } of workflow.list({ query: `WorkflowId='${workflowId}'` })) {
      histories.push(await workflow.getHandle(workflowId, runId).fetchHistory());
    }
    return histories;
  }
});
