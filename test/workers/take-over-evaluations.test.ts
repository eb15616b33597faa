import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Client } from '@temporalio/client';
import { defaultPayloadConverter } from '@temporalio/common';
import { connectionWith } from '../stand-ins/listed-workflows.ts';
import { takeOverEvaluations } from '../../workers/stack/take-over-evaluations.ts';

interface Execution {
  readonly type: string;
  readonly parent?: string;
  /** Which code wrote its history; null before its first task. */
  readonly version: string | null;
  readonly input?: unknown;
  /** Refusal of the request, if any. */
  readonly refusal?: string;
  /** It cannot be ended. */
  readonly isStubborn?: boolean;
}

/** A Temporal server with these executions open, as far as taking them over asks for it. Notes what is done to them. */
function serverWith(open: Readonly<Record<string, Execution>>) {
  const done: string[] = [];
  const connection = connectionWith({
    list: () => Object.entries(open).map(([workflowId, { type, parent }]) => ({ type, workflowId, runId: workflowId, parent })), // prettier-ignore
  });
  const workflow = {
    getHandle: (workflowId: string, runId = workflowId) => ({
      async describe() {
        const { type, version, refusal } = open[workflowId]!;
        if (refusal !== undefined) throw new Error(refusal);
        return { type, workflowId, version, runId: workflowId, taskQueue: 'ratchet', status: { name: 'RUNNING' }, staticSummary }; // prettier-ignore
      },
      async terminate() {
        assert.equal(runId, workflowId, 'the execution that was listed');
        if (open[workflowId]!.isStubborn) throw new Error('it does not end');
        done.push(`end ${workflowId}`);
      },
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
  return {
    done,
    client: { connection, workflow, workflowService: { getWorkflowExecutionHistory }, options } as unknown as Client,
  };
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

const scheduled = {
  'nightly.evaluations.words': { type: 'evaluate', version: 'old', parent: 'nightly.evaluations' },
  nightly: { type: 'evaluateNewest', version: 'old', input: 'suite.toml' },
  'nightly.evaluations': { type: 'evaluate', version: 'old', parent: 'nightly' },
};

test("a schedule's evaluation begins anew as well; then its parts of other code end, and it begins them again", async () => {
  const { client, done } = serverWith(scheduled);
  assert.deepEqual((await takeOver(client)).taken, ['nightly']);
  assert.deepEqual(done, [
    'evaluateNewest nightly ["suite.toml"] TERMINATE_EXISTING',
    'end nightly.evaluations',
    'end nightly.evaluations.words',
  ]);
});

test('parts that a killed command left behind end with the next one, and those of our code go on', async () => {
  const { client, done } = serverWith({
    ...scheduled,
    nightly: { ...scheduled.nightly, version: 'new' },
    'nightly.evaluations.numbers': { type: 'evaluate', version: 'new', parent: 'nightly.evaluations' },
  });
  assert.deepEqual(await takeOver(client), { taken: [], failures: [] });
  assert.deepEqual(done, ['end nightly.evaluations', 'end nightly.evaluations.words']);
});

test('a part that cannot be ended is told, and the others end', async () => {
  const { client, done } = serverWith({
    ...scheduled,
    'nightly.evaluations': { ...scheduled['nightly.evaluations'], isStubborn: true },
  });
  const { taken, failures } = await takeOver(client);
  assert.deepEqual([taken, failures], [['nightly'], ['nightly.evaluations: it does not end']]);
  assert.deepEqual(done.slice(1), ['end nightly.evaluations.words']);
});

test('parts of one that cannot be taken over go on with it', async () => {
  const { client, done } = serverWith({
    ...scheduled,
    nightly: { ...scheduled.nightly, refusal: 'its history is gone' },
  });
  assert.deepEqual((await takeOver(client)).failures, ['nightly: its history is gone']);
  assert.deepEqual(done, []);
});

test('one that cannot be taken over is told, and keeps no other from running', async () => {
  const { client } = serverWith({
    broken: { type: 'evaluate', version: 'old', refusal: 'its history is gone' },
    search: { type: 'optimizePrompt', version: 'old' },
  });
  assert.deepEqual(await takeOver(client), { taken: ['search'], failures: ['broken: its history is gone'] });
});
