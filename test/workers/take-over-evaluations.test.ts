import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Client } from '@temporalio/client';
import { defaultPayloadConverter } from '@temporalio/common';
import { takeOverEvaluations } from '../../workers/stack/take-over-evaluations.ts';

interface Execution {
  readonly type: string;
  readonly parent?: string;
  /** Which code wrote its history; null before its first task. */
  readonly version: string | null;
  readonly input?: unknown;
  /** Refusal of the request, if any. */
  readonly refusal?: string;
}

/** A Temporal server with these executions open, as far as taking them over asks for it. Notes what is done to them. */
function serverWith(open: Readonly<Record<string, Execution>>) {
  const done: string[] = [];
  const workflow = {
    async *list() {
      for (const [workflowId, { type, parent }] of Object.entries(open)) {
        yield { type, workflowId, parentExecution: parent === undefined ? undefined : { workflowId: parent } };
      }
    },
    getHandle: (workflowId: string) => ({
      async describe() {
        const { version, refusal } = open[workflowId]!;
        if (refusal !== undefined) throw new Error(refusal);
        return { version, runId: workflowId, taskQueue: 'ratchet', status: { name: 'RUNNING' }, staticSummary };
      },
      terminate: async () => void done.push(`end ${workflowId}`),
    }),
    start: async (type: string, { workflowId, args, workflowIdConflictPolicy, memo }: Record<string, unknown>) => {
      assert.deepEqual(memo, { taken_over_from: workflowId }, 'the execution that it was');
      done.push(`${type} ${String(workflowId)} ${JSON.stringify(args)} ${String(workflowIdConflictPolicy)}`);
    },
  };
  const getWorkflowExecutionHistory = async ({ execution }: { execution: { workflowId: string } }) => {
    const payloads = [defaultPayloadConverter.toPayload(open[execution.workflowId]!.input ?? null)];
    return { history: { events: [{ workflowExecutionStartedEventAttributes: { input: { payloads } } }] } };
  };
  const options = {
    namespace: 'default',
    loadedDataConverter: { payloadConverter: defaultPayloadConverter, payloadCodecs: [] },
  };
  return { done, client: { workflow, workflowService: { getWorkflowExecutionHistory }, options } as unknown as Client };
}
const staticSummary = async () => 'words · m';

async function takeOver(client: Client) {
  const failures: string[] = [];
  const taken = await takeOverEvaluations(client, {
    version: 'new',
    versionOf: (found) => (found as unknown as Execution).version,
    failed: (workflowId, reason) => void failures.push(`${workflowId}: ${(reason as Error).message}`),
  });
  return { taken, failures };
}

test('an evaluation of other code begins anew with its input, at once; one of ours, or that nobody has worked on, continues', async () => {
  const { client, done } = serverWith({
    'eval.old': { type: 'evaluate', version: 'old', input: { numExamples: 7 } },
    'eval.own': { type: 'evaluate', version: 'new' },
    'eval.fresh': { type: 'evaluate', version: null },
    // Begun by a run, which is no evaluation: a workflow of its own.
    'run.eval.words.v5': { type: 'evaluate', version: 'old', parent: 'run', input: 5 },
  });
  assert.deepEqual(await takeOver(client), { taken: ['eval.old', 'run.eval.words.v5'], failures: [] });
  assert.deepEqual(done, [
    'evaluate eval.old [{"numExamples":7}] TERMINATE_EXISTING',
    'evaluate run.eval.words.v5 [5] TERMINATE_EXISTING',
  ]);
});

test("a schedule's evaluation begins anew as well, once its parts have ended: their ids are needed again", async () => {
  const { client, done } = serverWith({
    'nightly.evaluations.words': { type: 'evaluate', version: 'old', parent: 'nightly.evaluations' },
    nightly: { type: 'evaluateNewest', version: 'old', input: 'suite.toml' },
    'nightly.evaluations': { type: 'evaluate', version: 'old', parent: 'nightly' },
  });
  assert.deepEqual((await takeOver(client)).taken, ['nightly']);
  assert.deepEqual(done, [
    'end nightly.evaluations.words',
    'end nightly.evaluations',
    'evaluateNewest nightly ["suite.toml"] TERMINATE_EXISTING',
  ]);
});

test('one that cannot be taken over is told, and keeps no other from running', async () => {
  const { client } = serverWith({
    broken: { type: 'evaluate', version: 'old', refusal: 'its history is gone' },
    search: { type: 'optimizePrompt', version: 'old' },
  });
  assert.deepEqual(await takeOver(client), { taken: ['search'], failures: ['broken: its history is gone'] });
});
