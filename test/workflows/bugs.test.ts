/** Bugs in Ratchet during a run: in an activity they end the attempt with a report; in a workflow the run waits, and says why. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, describe, test } from 'node:test';
import { Worker } from '@temporalio/worker';
import { describeWaiting } from '../../cli/follow/follow-run.ts';
import { whyStuck } from '../../workers/temporal/why-stuck.ts';
import { RatchetError } from '../../core/errors.ts';
import { workflowBundlePath, workflowCodeVersion } from '../../workers/program/workflow-bundle.ts';
import { evaluating } from './fake-evaluation.ts';
import { failureOf, until } from './look.ts';
import { begin, closeServer, freshName, openServer } from './server.ts';

after(closeServer);

const bug = (): never => {
  throw new RatchetError('Bug', 'This looks like a bug of Ratchet.', { cause: new TypeError('of undefined') });
};

describe('a bug in an activity', { concurrency: 3 }, () => {
  test('fails the run with its report', async () => {
    const run = await begin({ fakes: { commitStep: (_, { nth, usual }) => (nth === 2 ? bug() : usual()) } });
    await assert.rejects(run.result(), (error: Error) => {
      assert.match(String((error.cause as Error).cause), /This looks like a bug of Ratchet/);
      return true;
    });
    const again = await begin({ fake: run.fake });
    assert.equal((await again.result()).step, 3, 'started again, it continues from the newest commit');
  });

  test('in the GPU worker that takes the run fails the run, which would otherwise ask for another worker for ever', async () => {
    const run = await begin({ fakes: { leaseTrainer: bug } });
    await failureOf(run.result());
    assert.equal(run.inputs('leaseTrainer').length, 1);
  });

  test('in an evaluation is reported, and the run continues', async () => {
    const run = await begin({ settings: { maxSteps: 1, eval: evaluating() }, fakes: { openEvaluation: bug } });
    assert.equal((await run.result()).step, 1);
    const warnings = await run.told('warning');
    assert.ok(
      warnings.some((line) => line.includes('This looks like a bug of Ratchet')),
      warnings.join('\n'),
    );
  });
});

/** The shipped workflows with one function that throws like a bug. */
async function brokenBundle(): Promise<string> {
  const code = await readFile(await workflowBundlePath(await workflowCodeVersion()), 'utf8');
  const broken = code.replace(/(async function openOrContinue\([^)]*\) \{)/, '$1 if (input.config) undefined.section;');
  assert.notEqual(broken, code);
  return broken;
}

test('a bug in a workflow is named wherever it is shown what the run waits for, until it is fixed', async () => {
  const { environment, client } = await openServer();
  const taskQueue = 'broken';
  const options = { connection: environment.nativeConnection, taskQueue, maxCachedWorkflows: 0 };
  const worker = await Worker.create({ ...options, workflowBundle: { code: await brokenBundle() } });
  const handle = await worker.runUntil(async () => {
    const begun = await client.workflow.start('trainRun', {
      workflowId: freshName(),
      taskQueue,
      workflowTaskTimeout: '1m', // on a busy machine a task would time out before it fails
      args: ['words.toml'],
    });
    await until('a workflow task that failed', async () => (await whyStuck(begun, begun.workflowId)) !== null);
    return begun;
  });
  const run = handle.workflowId;
  const stuck = await whyStuck(handle, run);
  assert.equal(stuck?.is, 'wedged');
  assert.match(
    stuck.text,
    /^its workflow code fails on the orchestrator.*, and is tried again: Cannot read properties of undefined \(reading 'section'\)\. That is a bug of Ratchet.*npx ratchet-rl stop run-\S+ --now/,
  );
  assert.match(
    await describeWaiting(handle),
    /^waiting on: its workflow code fails on the orchestrator.*, and is tried again: Cannot read/,
  );
  await handle.terminate();
});
