import assert from 'node:assert/strict';
import os from 'node:os';
import { test, type TestContext } from 'node:test';
import { Connection } from '@temporalio/client';
import { workerIdentity, workerTagVar } from '../../workers/roles/worker-identity.ts';
import { tellDeath } from '../../workers/temporal/tell-death.ts';
import { startActivity } from './fixtures/one-activity.ts';
import { startTemporalServer } from './fixtures/temporal-server.ts';

const tag = 'abc123';
process.env[workerTagVar] = tag;
const died = { role: 'rollout', pid: process.pid, tag, how: 'was killed (SIGKILL)' } as const;

async function withActivity(t: TestContext) {
  const connection = await Connection.connect({ address: await startTemporalServer(t) });
  t.after(() => connection.close());
  return startActivity(connection);
}

test('the activity of a dead worker is tried again at once, and says who died', async (t) => {
  const { client, handle, poll } = await withActivity(t);
  assert.equal((await poll(workerIdentity('rollout', 'abcdef01'))).attempt, 1);
  assert.equal(await tellDeath(client, died), 1);
  const { pendingActivities } = (await handle.describe()).raw;
  assert.equal(pendingActivities![0]!.lastFailure!.applicationFailureInfo!.type, 'WorkerDied');
  assert.equal(
    pendingActivities![0]!.lastFailure!.message,
    `the rollout worker ${process.pid}@${os.hostname()} was killed (SIGKILL)`,
  );
  assert.equal((await poll('another')).attempt, 2);
});

test('activities of other workers, roles and programs are left alone', async (t) => {
  const { client, poll } = await withActivity(t);
  assert.equal(await tellDeath(client, died), 0, 'nobody has it');
  await poll(workerIdentity('rollout', 'abcdef01'));
  assert.equal(await tellDeath(client, { ...died, pid: process.pid + 1 }), 0);
  assert.equal(await tellDeath(client, { ...died, role: 'orchestrator' }), 0);
  assert.equal(await tellDeath(client, { ...died, tag: 'def456' }), 0, 'the same process number in another container');
  assert.equal(await tellDeath(client, died), 1);
  await poll('somebody else');
  assert.equal(await tellDeath(client, died), 0, 'another has it by now');
});
