import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { Client } from '@temporalio/client';
import { readHostAndPort } from '../../cli/typed/read-host-and-port.ts';
import { addressOf, startHealthServer } from '../../workers/roles/health-server.ts';
import { Readiness } from '../../workers/roles/readiness.ts';
import { eventually } from './fixtures/processes.ts';

/** A Temporal server that knows `pollers`, or answers with an error. */
function standIn() {
  const temporal = { pollers: [] as string[], failure: null as Error | null };
  const client = {
    options: { namespace: 'default' },
    withDeadline: (_: number, ask: () => Promise<unknown>) => ask(),
    workflowService: {
      describeTaskQueue: () =>
        temporal.failure
          ? Promise.reject(temporal.failure)
          : Promise.resolve({ pollers: temporal.pollers.map((identity) => ({ identity })) }),
    },
  };
  return { temporal, client: () => client as unknown as Client };
}

function opened(t: TestContext) {
  const { temporal, client } = standIn();
  const worker = { isWorking: true, seesStores: true };
  const readiness = new Readiness({
    client,
    taskQueue: 'ratchet-rollout',
    identity: 'rollout worker 1@here',
    isWorking: () => worker.isWorking,
    seesStores: () => worker.seesStores,
    lookMs: 20,
  });
  t.after(() => readiness.end());
  return { temporal, worker, readiness };
}

test('a worker is ready when Temporal has seen it poll, and stays so while it is too busy to', async (t) => {
  const { temporal, readiness } = opened(t);
  temporal.pollers = ['rollout worker 2@elsewhere'];
  await eventually('Temporal answers', () => readiness.whyNot === 'Temporal has not seen it poll yet');
  temporal.pollers = ['rollout worker 2@elsewhere', 'rollout worker 1@here'];
  await eventually('it is ready', () => readiness.whyNot === null);
  temporal.pollers = [];
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(readiness.whyNot, null);
});

test('a worker is not ready while Temporal does not answer it, such as with a key that has expired', async (t) => {
  const { temporal, readiness } = opened(t);
  temporal.pollers = ['rollout worker 1@here'];
  await eventually('it is ready', () => readiness.whyNot === null);
  temporal.failure = new Error('16 UNAUTHENTICATED: Request unauthorized.');
  const expected = 'Temporal does not answer it: 16 UNAUTHENTICATED: Request unauthorized.';
  await eventually('it is not', () => readiness.whyNot === expected);
  temporal.failure = null;
  await eventually('it is ready again', () => readiness.whyNot === null);
});

test('a worker is not ready that does not poll, does not see its stores, or was told to end', async (t) => {
  const { temporal, worker, readiness } = opened(t);
  temporal.pollers = ['rollout worker 1@here'];
  await eventually('it is ready', () => readiness.whyNot === null);
  worker.seesStores = false;
  assert.equal(readiness.whyNot, 'it does not see the store of a run');
  worker.isWorking = false;
  assert.equal(readiness.whyNot, 'it does not poll');
  readiness.end();
  assert.equal(readiness.whyNot, 'it was told to end, and takes nothing new');
});

test('the server of probes answers without a key: whether the process lives, and whether it gets work', async (t) => {
  let because: string | null = 'it begins';
  const server = await startHealthServer({ host: '127.0.0.1', port: 0, whyNotReady: () => because });
  t.after(() => server.close());
  const ask = async (route: string, method = 'GET'): Promise<unknown[]> => {
    const answer = await fetch(`${addressOf(server)}${route}`, { method });
    return [answer.status, await answer.json()];
  };
  assert.deepEqual(await ask('/health'), [200, { status: 'ok' }]);
  assert.deepEqual(await ask('/ready'), [503, { status: 'not ready', because: 'it begins' }]);
  because = null;
  assert.deepEqual(await ask('/ready?from=kubelet'), [200, { status: 'ready' }]);
  assert.deepEqual((await ask('/metrics'))[0], 404);
  assert.deepEqual((await ask('/ready', 'POST'))[0], 405);
});

test('--health takes an address with its port, or a port of the loopback', () => {
  assert.deepEqual(readHostAndPort('0.0.0.0:8425'), { host: '0.0.0.0', port: 8425 });
  assert.deepEqual(readHostAndPort('[::]:8425'), { host: '::', port: 8425 });
  assert.deepEqual(readHostAndPort('8425'), { host: '127.0.0.1', port: 8425 });
  for (const text of ['', 'here', '0.0.0.0:', ':8425', '::8425', '0.0.0.0:70000', '1.5'])
    assert.throws(() => readHostAndPort(text), /Expected HOST:PORT/, text);
});
