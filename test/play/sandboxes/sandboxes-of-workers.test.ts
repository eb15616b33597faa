/** What is known of the sandboxes of workers that died. */
import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';
import { test } from 'node:test';
import { temporaryFolder } from '../../../backends/testing/material.ts';
import { thisWorker } from '../../../host/worker-process.ts';
import { earlierWorker } from './earlier-worker.ts';
import { sandboxesOfWorkers } from '../../../play/sandboxes/sandboxes-of-workers.ts';
import { LeaseStore } from '../../../runs/sandboxes/lease-store.ts';

test('sandboxes of a worker have ended when it is gone, and its leases are, or they end with it', async (t) => {
  const store = pathToFileURL(await temporaryFolder(t)).href;
  const leases = new LeaseStore(store);
  const workers = sandboxesOfWorkers(store);
  const dead = earlierWorker(); // an earlier process of this number
  const lease = (name: string, pool: string, worker: string) => ({
    name,
    pool,
    owner: { run: 'run', worker },
    createdAtMs: Date.now(),
    deadlineAtMs: Date.now() + 3_600_000,
    costPerHour: 0,
  });
  const own = await leases.addPool({ kind: 'namespace', python: 'python3' });
  const docker = await leases.addPool({ kind: 'docker', socket: null });
  await leases.open(lease('a', own, dead));
  await leases.open(lease('b', docker, thisWorker()));
  assert.deepEqual([await workers.endOf(thisWorker()), await workers.endOf('elsewhere:7:1')], ['unknown', 'unknown']);
  assert.equal(typeof (await workers.endOf(dead)), 'number');
  await leases.open(lease('c', docker, dead));
  assert.equal(await workers.endOf(dead), 'ending');
  await leases.end((await leases.read('c'))!, { atMs: Date.now(), why: 'worker gone' });
  assert.equal(typeof (await workers.endOf(dead)), 'number');
  await leases.open({ ...lease('d', docker, dead), deadlineAtMs: Date.now() - 600_000 });
  assert.equal(await workers.endOf(dead), 'unknown', 'nobody sweeps');
});
