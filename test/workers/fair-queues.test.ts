/** Queues of a folder's own Temporal server are fair, except in a database that was begun before they were. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection } from '@temporalio/client';
import { databaseVersion, prepareDatabase, serverArguments, serverFiles } from '../../workers/temporal/dev-server.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';
import { startStoppableServer } from './fixtures/temporal-server.ts';

/** A poll is answered after so long, with nothing, where nothing waits. */
const patienceMs = 30_000;
const taskQueue = 'nobody-polls';
/** A server notes so often what it has put into queues. What it had not noted it puts there again when it is started. */
const notedMs = 50;
const silent = (): void => undefined;
const version = '1.29.1';

function stateFolder(t: TestContext): string {
  const folder = path.join(temporaryFolder(t), '.ratchet');
  mkdirSync(folder);
  return folder;
}

test('a new database has fair queues, and keeps them', (t) => {
  const folder = stateFolder(t);
  assert.deepEqual(prepareDatabase(folder, version, silent), { isFair: true });
  writeFileSync(serverFiles(folder).database, '');
  assert.deepEqual(prepareDatabase(folder, version, silent), { isFair: true });
  assert.equal(databaseVersion(folder), version);
});

test('one of before has none, until a new one takes its place', (t) => {
  const folder = stateFolder(t);
  const { database, version: record } = serverFiles(folder);
  writeFileSync(database, '');
  writeFileSync(record, `${version}\n`);
  assert.deepEqual(prepareDatabase(folder, version, silent), { isFair: false });
  assert.equal(readFileSync(record, 'utf8'), `${version}\n`);
  assert.deepEqual(prepareDatabase(folder, '1.32.0', silent), { isFair: true });
  assert.ok(!existsSync(database)); // moved aside
});

test('the server is told so', () => {
  const said = (isFair: boolean) => serverArguments({ grpc: 1, ui: 2 }, 'file.db', { isFair }).join(' ');
  assert.ok(said(true).includes('--dynamic-config-value matching.enableFairness=true'));
  assert.ok(!said(false).includes('enableFairness'));
});

test('what waits in the queues of a database of before is handed out after the server was started again', async (t) => {
  const folder = stateFolder(t);
  const { database, version: record } = serverFiles(folder);
  const settings = { 'history.transferProcessorUpdateAckInterval': `"${notedMs}ms"` };
  const before = await startStoppableServer(t, { database, isFair: false, settings });
  writeFileSync(record, `${version}\n`);
  await begin(t, before.address);
  await delay(20 * notedMs);
  before.stop();
  const after = await startStoppableServer(t, { database, ...prepareDatabase(folder, version, silent) });
  assert.equal(await handedOut(t, after.address), 'waits');
});

async function clientAt(t: TestContext, address: string): Promise<Client> {
  const connection = await Connection.connect({ address });
  t.after(() => connection.close());
  return new Client({ connection });
}

async function begin(t: TestContext, address: string): Promise<void> {
  const client = await clientAt(t, address);
  await client.workflow.start('any', { workflowId: 'waits', taskQueue, args: [] });
  await eventually('its task waits in the queue', async () => {
    const asked = { namespace: 'default', taskQueue: { name: taskQueue }, taskQueueType: 1, reportStats: true };
    const { stats } = await client.workflowService.describeTaskQueue(asked);
    return Number(stats?.approximateBacklogCount ?? 0) === 1;
  });
}

/** Id of the workflow whose task somebody gets who polls. */
async function handedOut(t: TestContext, address: string): Promise<string | null | undefined> {
  const client = await clientAt(t, address);
  const asked = { namespace: 'default', taskQueue: { name: taskQueue }, identity: 'test' };
  const { workflowExecution } = await client.withDeadline(Date.now() + patienceMs, () =>
    client.workflowService.pollWorkflowTaskQueue(asked),
  );
  return workflowExecution?.workflowId;
}
