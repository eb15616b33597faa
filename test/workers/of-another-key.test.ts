/** Workflows in the same namespace that another key has encrypted: whoever lists all of them sees the rest. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test, type TestContext } from 'node:test';
import { Client, Connection } from '@temporalio/client';
import proto from '@temporalio/proto';
import { poolWorkflowId } from '../../core/names.ts';
import { runStandings } from '../../cli/temporal/report-runs.ts';
import { findTrainers } from '../../workers/roles/find-trainers.ts';
import { BrokenHistories } from '../../workers/stack/broken-histories.ts';
import { takeOverBeside } from '../../workers/stack/take-over.ts';
import { askPools } from '../../workers/temporal/ask-pools.ts';
import { describeWorkflow, listWorkflows } from '../../workers/temporal/list-workflows.ts';
import { dataConverterFor, readPayloadKeys } from '../../workers/temporal/payload-codec.ts';
import { allPendingActivities } from '../../workers/temporal/pending-activities.ts';
import { eventually } from '../eventually.ts';
import { startTemporalServer } from './fixtures/temporal-server.ts';

const { WorkflowTaskFailedCause } = proto.temporal.api.enums.v1;
const version = 'ours';
const theirs = {
  trainRun: 'their-run',
  pool: poolWorkflowId('theirs'),
  evaluate: 'their-eval',
  playRounds: 'their-rounds',
};
const ours = { trainRun: 'our-run', pool: poolWorkflowId('ours'), evaluate: 'our-eval' };
const newKey = () => readPayloadKeys({ RATCHET_PAYLOAD_KEY: randomBytes(32).toString('base64') });

/** A server with workflows of two keys, whose orchestrators are away. */
async function stage(t: TestContext) {
  const connection = await Connection.connect({ address: await startTemporalServer(t) });
  t.after(() => connection.close());
  const [client, other] = [newKey(), newKey()].map((keys) => new Client({ connection, dataConverter: dataConverterFor(keys) })) as [Client, Client]; // prettier-ignore
  const start = async (by: Client, ids: Readonly<Record<string, string>>): Promise<Map<string, string>> => {
    const executions = new Map<string, string>();
    for (const [type, workflowId] of Object.entries(ids)) {
      const options = { workflowId, taskQueue: workflowId, args: [{}], memo: { a: 'word' } };
      executions.set(workflowId, (await by.workflow.start(type, options)).firstExecutionRunId);
    }
    return executions;
  };
  const foreign = await start(other, theirs);
  await start(client, ours);
  const listed = async (): Promise<number> => {
    let count = 0;
    for await (const _ of listWorkflows(client, "ExecutionStatus='Running'", 2)) count += 1; // of several pages
    return count;
  };
  await eventually('all are listed', listed, (count) => count === foreign.size + Object.keys(ours).length);
  const theirsAreUntouched = async (): Promise<void> => {
    for (const [id, runId] of foreign) {
      const found = await describeWorkflow(client, id);
      assert.deepEqual([found.runId, found.status.name], [runId, 'RUNNING']);
    }
  };
  return { client, theirsAreUntouched };
}

/** Has a worker of our code complete the first task of a workflow, and fail with its history from then on. */
async function breakHistory(client: Client, workflowId: string) {
  const { workflow, workflowService, options } = client;
  const us = { namespace: options.namespace, identity: 'us' };
  const take = async () => {
    const poll = () => workflowService.pollWorkflowTaskQueue({ ...us, taskQueue: { name: workflowId } });
    const { taskToken } = await client.withDeadline(Date.now() + 60_000, poll);
    return { ...us, taskToken };
  };
  await workflowService.respondWorkflowTaskCompleted({ ...(await take()), workerVersionStamp: { buildId: version } });
  await workflow.getHandle(workflowId).signal('work');
  const cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR;
  await workflowService.respondWorkflowTaskFailed({ ...(await take()), cause });
}

test('the SDK itself lists nothing more', async (t) => {
  const { client } = await stage(t);
  await assert.rejects(async () => {
    for await (const _ of client.workflow.list());
  }, /is encrypted with the key/);
});

test('a broken pool of ours is begun anew, and theirs are left', async (t) => {
  const { client, theirsAreUntouched } = await stage(t);
  const said: string[] = [];
  const histories = new BrokenHistories({ client: () => client, version, say: (line) => void said.push(line) });
  const { runId } = await client.workflow.getHandle(ours.pool).describe();
  await breakHistory(client, ours.pool);
  await histories.look();
  await histories.look();
  assert.deepEqual(said, ['the pool ours continues anew, as its history cannot be replayed']);
  assert.notEqual((await client.workflow.getHandle(ours.pool).describe()).runId, runId);
  await theirsAreUntouched();
});

test('what is beside runs is taken over, and each of theirs is named', async (t) => {
  const { client, theirsAreUntouched } = await stage(t);
  const [said, failures]: [string[], string[]] = [[], []];
  await takeOverBeside({
    client,
    version,
    writtenBy: () => 'other',
    said: (what) => void said.push(what),
    failed: (id, reason) => void failures.push(`${id}: ${(reason as Error).message}`),
  });
  assert.deepEqual(said, ['the pool ours continues', `${ours.evaluate} continues with what it has finished,`]);
  const named = [theirs.playRounds, theirs.pool, theirs.evaluate];
  assert.deepEqual(failures.map((line) => line.split(': ')[0]), named); // prettier-ignore
  for (const line of failures) assert.match(line, /is encrypted with the key/);
  await theirsAreUntouched();
});

test('runs, pools, GPU workers and activities are found', async (t) => {
  const { client } = await stage(t);
  const unreadable: string[] = [];
  const standings = await runStandings(client, new Date(), (run, why) => unreadable.push(`${run}: ${why}`));
  assert.deepEqual([...standings.keys()], [ours.trainRun]);
  assert.equal(unreadable.length, 1);
  assert.match(unreadable[0]!, /^their-run: .* is encrypted with the key/);
  assert.deepEqual(await findTrainers(client), { trainers: [], lastSeen: null });
  assert.deepEqual(await askPools(client, 'none'), []);
  assert.deepEqual(await allPendingActivities(client, 100), []);
});
