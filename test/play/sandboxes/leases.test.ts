import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import type { LeaseRequest } from '../../../backends/sandboxes/types.ts';
import { type LeaseOwner, ofThisProcess, type SnapshotRef } from '../../../core/settings/sandboxes.ts';
import { thisWorker } from '../../../host/worker-process.ts';
import { LeasedSandboxes, type LeasingOptions } from '../../../play/sandboxes/leased-sandboxes.ts';
import { sweepSandboxes, type SweepOptions } from '../../../play/sandboxes/sweep.ts';
import { WarmSandboxes } from '../../../play/sandboxes/warm-sandboxes.ts';
import { dayOf, LeaseStore } from '../../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../../runs/sandboxes/stored-snapshots.ts';
import { type CloudFaults, SandboxCloud } from '../../stand-ins/sandboxes/cloud.ts';
import { earlierWorker } from './earlier-worker.ts';
import { emptySandboxes } from '../../stand-ins/sandboxes/empty-sandboxes.ts';
import { until } from '../../eventually.ts';

let root: string;
before(async () => void (root = await mkdtemp(path.join(os.tmpdir(), 'ratchet-leases-'))));
after(() => rm(root, { recursive: true, force: true }));

const request: LeaseRequest = { limits: { memoryMb: 1, diskMb: 1, seconds: 600 }, network: 'route' };
const owner: LeaseOwner = { run: 'run', worker: thisWorker() };
const { signal } = new AbortController();
const provider = { kind: 'docker', socket: null } as const;
let places = 0;

async function openPlace(faults: CloudFaults = {}) {
  const uri = pathToFileURL(path.join(root, `${++places}`)).href;
  const leases = new LeaseStore(uri);
  const cloud = new SandboxCloud(emptySandboxes(), faults);
  const project = await leases.project();
  const pool = await leases.addPool(provider);
  /** Each is a worker of its own: nothing is shared but the store and the provider. */
  const worker = (more: Partial<LeasingOptions> = {}): LeasedSandboxes =>
    new LeasedSandboxes({ leases: new LeaseStore(uri), provider: cloud.client(), pool, project, quota: null, costPerHour: 0, lookAgainMs: 10, settleMs: 100, ...more }); // prettier-ignore
  const sweep = (more: Partial<SweepOptions> = {}) =>
    sweepSandboxes({
      leases,
      snapshots: new StoredSnapshots(leases, thisWorker()),
      open: async () => cloud.client(),
      isWorkflowRunning: async () => true,
      settleMs: 0,
      ...more,
    });
  const accounts = async () => leases.ended(dayOf(Date.now()));
  return { leases, cloud, project, pool, worker, sweep, accounts };
}

const gone: LeaseOwner = { run: 'run', worker: earlierWorker() };

describe('sandboxes under leases', () => {
  test('a lease is written before its sandbox is made, and its account when it is gone', async () => {
    const { leases, cloud, worker, accounts } = await openPlace({ deletionMs: 30 });
    const { sandbox, lease, end } = await worker({ costPerHour: 36 }).take(request, { owner, deadlineS: 60, signal });
    const [open] = await leases.readOpen();
    assert.deepEqual([open!.lease.name, open!.live?.owner.run, sandbox.name], [lease.name, 'run', lease.name]);
    assert.ok(open!.lease.createdAtMs <= open!.creating!.atMs && open!.creating!.atMs <= open!.live!.atMs);
    await delay(50);
    const [bill, again] = await Promise.all([end(), end()]);
    assert.deepEqual(again, bill);
    assert.ok(bill.seconds >= 0.05 && Math.abs(bill.cost - bill.seconds / 100) < 1e-9);
    assert.deepEqual([cloud.names(), await leases.readOpen()], [[], []]);
    assert.deepEqual((await accounts()).map(({ why, seconds }) => [why, seconds]), [['returned', bill.seconds]]); // prettier-ignore
  });

  test('the quota holds over workers, whatever they do at once', async () => {
    const { cloud, worker, accounts, leases } = await openPlace({ startMs: 5, deletionMs: 20 });
    const workers = [worker({ quota: 3 }), worker({ quota: 3 }), worker({ quota: 3 })];
    await Promise.all(
      Array.from({ length: 18 }, async (_, i) => {
        const leased = await workers[i % 3]!.take(request, { owner, deadlineS: 120, signal });
        await delay(5 + (i % 4) * 10);
        await leased.end();
      }),
    );
    assert.ok(cloud.most <= 3, `${cloud.most} at once`);
    assert.equal(cloud.most, 3, 'all places are used');
    assert.deepEqual([cloud.names(), await leases.readOpen(), (await accounts()).length], [[], [], 18]);
  });

  test('a place of a worker that died on this machine is free for whoever waits for it', async () => {
    const { cloud, worker, accounts } = await openPlace();
    await worker({ quota: 1 }).take(request, { owner: gone, deadlineS: 600, signal });
    const { lease } = await worker({ quota: 1 }).take(request, { owner, deadlineS: 5, signal });
    assert.deepEqual(cloud.names(), [lease.name]);
    assert.equal(cloud.most, 1);
    assert.deepEqual(
      (await accounts()).map(({ why }) => why),
      ['worker gone'],
    );
  });

  test('a provider that is full is asked again, until the deadline', async () => {
    const { cloud, worker, leases } = await openPlace({ quota: 1 });
    const first = await worker().take(request, { owner, deadlineS: 60, signal });
    await assert.rejects(worker().take(request, { owner, deadlineS: 0.1, signal }), { code: 'SandboxUnavailable' });
    const second = worker().take(request, { owner, deadlineS: 60, signal });
    await delay(50);
    await first.end();
    await (await second).end();
    assert.deepEqual([cloud.names(), await leases.readOpen()], [[], []]);
  });

  test('a request without an answer keeps its place until its sandbox has come and gone', async () => {
    const { cloud, worker, accounts, leases } = await openPlace({ startMs: 60, loses: (n) => n === 1 });
    const one = worker({ quota: 2, settleMs: 8_000 });
    const leased = await one.take(request, { owner, deadlineS: 60, signal });
    assert.equal((await leases.openNames()).size, 2);
    assert.notEqual(leased.sandbox.name, undefined);
    await leased.end();
    await until('the account', async () => (await leases.openNames()).size === 0);
    assert.deepEqual([cloud.names(), cloud.created], [[], 2]);
    assert.deepEqual((await accounts()).map(({ why }) => why).toSorted(), ['returned', 'unanswered']); // prettier-ignore
  });

  test('a provider that never answers is given up, and what came of it all the same is found', async () => {
    const { cloud, worker, leases } = await openPlace({ startMs: 20, loses: () => true });
    await assert.rejects(worker().take(request, { owner, deadlineS: 60, signal }), { code: 'SandboxUnavailable' });
    await until('the accounts', async () => (await leases.openNames()).size === 0);
    assert.deepEqual([cloud.names(), cloud.created], [[], 3]);
  });

  test('one that is wanted no more leaves neither a lease nor a sandbox', async () => {
    const { cloud, worker, leases } = await openPlace({ quota: 1 });
    const first = await worker({ quota: 1 }).take(request, { owner, deadlineS: 60, signal });
    const stop = new AbortController();
    const waiting = worker({ quota: 1 }).take(request, { owner, deadlineS: 60, signal: stop.signal });
    await delay(50);
    stop.abort();
    await assert.rejects(waiting, { name: 'AbortError' });
    await first.end();
    assert.deepEqual([cloud.names(), await leases.readOpen()], [[], []]);
  });

  test('a wait for a place may be longer than the sandbox lives, whose deadline counts from its beginning', async () => {
    const { leases, worker } = await openPlace();
    const first = await worker({ quota: 1 }).take(request, { owner, deadlineS: 60, signal });
    const waiting = worker({ quota: 1 }).take(request, { owner, deadlineS: 1, waitS: 60, signal });
    await until('the other lease', async () => (await leases.readOpen()).length === 2);
    await delay(1_200);
    await first.end();
    const second = await waiting;
    assert.ok(second.lease.deadlineAtMs <= Date.now() + 1_000);
    await second.end();
    const none = worker({ quota: 1, places: 'of-another-host' });
    const [third, other] = [await worker({ quota: 1 }).take(request, { owner, deadlineS: 60, signal }), await none.take(request, { owner, deadlineS: 60, signal })]; // prettier-ignore
    await Promise.all([third.end(), other.end()]);
  });

  test('a later attempt of a rollout ends what an earlier one had', async () => {
    const { cloud, worker, accounts } = await openPlace();
    const attempt = (n: number, index = 0): LeaseOwner => ({
      ...owner,
      lineage: 'main',
      group: 'g',
      index,
      attempt: n,
    });
    const [earlier, other] = [
      await worker({ quota: 2 }).take(request, { owner: attempt(1), deadlineS: 60, signal }),
      await worker({ quota: 2 }).take(request, { owner: attempt(1, 1), deadlineS: 60, signal }),
    ];
    const later = await worker({ quota: 2 }).take(request, { owner: attempt(2), deadlineS: 60, signal });
    assert.deepEqual(new Set(cloud.names()), new Set([later.sandbox.name, other.sandbox.name]));
    assert.deepEqual((await accounts()).map(({ name, why }) => [name, why]), [[earlier.sandbox.name, 'superseded']]); // prettier-ignore
    assert.deepEqual(await earlier.end(), { seconds: 0, cost: 0 }, 'its account is closed');
  });
});

describe('the sweep', () => {
  test('ends what is past its deadline, whose worker or workflow is gone; and nothing else', async () => {
    const { leases, cloud, worker, sweep, accounts } = await openPlace({ deletionMs: 10 });
    const take = (more: Partial<LeaseOwner>, deadlineS = 600) =>
      worker().take(request, { owner: { ...owner, ...more }, deadlineS, signal });
    const late = await take({}, 1);
    const orphaned = await take(gone);
    const over = await take({ workflow: 'ended' });
    const kept = await take({ workflow: 'running' });
    const isWorkflowRunning = async (id: string) => id === 'running';
    const { ended, ...found } = await sweep({ isWorkflowRunning, nowMs: Date.now() + 60_000 });
    assert.deepEqual(
      new Map(ended.map(({ name, why }) => [name, why])),
      new Map([
        [late.lease.name, 'deadline'],
        [orphaned.lease.name, 'worker gone'],
        [over.lease.name, 'run ended'],
      ] as const),
    );
    assert.deepEqual(found, { open: 4, orphans: [], left: [], forgotten: [], troubles: [] });
    assert.deepEqual(cloud.names(), [kept.lease.name]);
    assert.deepEqual((await sweep({ isWorkflowRunning })).ended, []);
    assert.equal((await accounts()).length, 3);
    assert.equal((await leases.readOpen()).length, 1);
  });

  test('destroys sandboxes of this place of runs that have no lease, and none of another', async () => {
    const { cloud, project, sweep } = await openPlace();
    const client = cloud.client();
    await client.create({ ...request, name: 'came-late', labels: { project, owner: 'nobody' } });
    await client.create({ ...request, name: 'of-others', labels: { project: 'theirs', owner: 'them' } });
    assert.deepEqual((await sweep()).orphans, ['came-late']);
    assert.deepEqual(cloud.names(), ['of-others']);
  });

  test('of a worker that died while it asked, waits until the sandbox can come no more', async () => {
    const { leases, cloud, pool, project, sweep } = await openPlace({ startMs: 'held', loses: () => true });
    const lease = {
      name: 'asked',
      pool,
      owner: gone,
      createdAtMs: Date.now(),
      deadlineAtMs: Date.now() + 60_000,
      costPerHour: 0,
    };
    await leases.open({ ...lease, name: 'not-asked' });
    await leases.open(lease);
    await leases.markCreating('asked', { atMs: Date.now() });
    await cloud.client().create({ ...request, name: 'asked', labels: { project, owner: 'x' } }).catch(() => undefined); // prettier-ignore
    const first = await sweep({ settleMs: 60_000 });
    assert.deepEqual([first.ended, first.left], [[{ name: 'not-asked', why: 'worker gone' }], ['asked']]);
    cloud.begin();
    await until('the sandbox', async () => (await cloud.client().find('asked')) !== null);
    const second = await sweep({ settleMs: 60_000 });
    assert.deepEqual([second.left, cloud.names()], [['asked'], []]);
    const third = await sweep({ nowMs: Date.now() + 59_000, settleMs: 1_000 });
    assert.deepEqual(third.ended, [{ name: 'asked', why: 'worker gone' }]);
  });

  test('a lease that is swept while its sandbox is made ends there', async () => {
    const { leases, cloud, worker, sweep } = await openPlace({ startMs: 'held' });
    const taking = worker().take(request, { owner: gone, deadlineS: 60, signal });
    await until('the request', async () => (await leases.readOpen()).some(({ creating }) => creating !== null));
    await sweep();
    cloud.begin();
    await assert.rejects(taking, { code: 'SandboxUnavailable' });
    await sweep();
    assert.deepEqual([cloud.names(), await leases.readOpen()], [[], []]);
  });

  test('a provider that does not answer is said, and the others are swept', async () => {
    const { leases, sweep, cloud, worker } = await openPlace();
    await leases.addPool({ kind: 'docker', socket: '/elsewhere' });
    await worker().take(request, { owner: gone, deadlineS: 60, signal });
    const { RatchetError } = await import('../../../core/errors.ts');
    const { troubles, ended } = await sweep({
      open: async (spec) => {
        if (spec.kind === 'docker' && spec.socket === null) return cloud.client();
        throw new RatchetError('SandboxUnavailable', 'nobody is there');
      },
    });
    assert.deepEqual([troubles, ended.length], [['docker: nobody is there'], 1]);
  });

  test('two sweeps at once close each account once', async () => {
    const { cloud, worker, sweep, accounts } = await openPlace({ deletionMs: 20 });
    for (let i = 0; i < 5; i++) await worker().take(request, { owner: gone, deadlineS: 60, signal });
    await Promise.all([sweep(), sweep(), sweep()]);
    assert.deepEqual([cloud.names(), (await accounts()).length], [[], 5]);
  });
});

describe('sandboxes that stand ready', () => {
  test('are handed over with files, variables and the route of their owner, and made again', async () => {
    const { cloud, worker, leases } = await openPlace({ startMs: 20 });
    const warm = new WarmSandboxes(worker({ quota: 3 }), 1);
    const socket = path.join(root, 'capture.sock');
    const server = createServer().listen(socket);
    const asked: LeaseRequest = { ...request, route: { socket, port: 80 }, files: [{ path: 'a', bytes: Buffer.from('b') }], env: { KEY: 'one' } }; // prettier-ignore
    try {
      const first = await warm.take(asked, { owner, deadlineS: 60, signal });
      await until('one that stands ready', async () => (await leases.readOpen()).filter(({ live, lease }) => live === null && lease.owner.run === 'warm').length === 1 && cloud.created === 2); // prettier-ignore
      await delay(60);
      const second = await warm.take({ ...asked, env: { KEY: 'two' } }, { owner, deadlineS: 60, signal });
      assert.equal((await second.sandbox.read('a', 9)).toString(), 'b');
      assert.equal((await second.sandbox.exec({ argv: ['x'], timeoutS: 1, outputBytesMax: 1, env: { MORE: '1' } })).stdout, '{"KEY":"two","MORE":"1"}'); // prettier-ignore
      assert.equal((await leases.read(second.lease.name))!.live!.owner.run, 'run');
      await Promise.all([first.end(), second.end()]);
      await warm.close();
    } finally {
      server.close();
    }
    assert.deepEqual([cloud.names(), await leases.readOpen()], [[], []]);
  });

  test('give their places to whoever waits for one of another kind', async () => {
    const { cloud, worker } = await openPlace();
    const warm = new WarmSandboxes(worker({ quota: 2 }), 1);
    await (await warm.take(request, { owner, deadlineS: 60, signal })).end();
    await until('one that stands ready', async () => cloud.names().length === 1);
    const other = await Promise.all([1, 2].map(() => warm.take({ ...request, image: 'other' }, { owner, deadlineS: 60, signal }))); // prettier-ignore
    assert.ok(cloud.most <= 2);
    await Promise.all(other.map(({ end }) => end()));
    await warm.close();
    assert.deepEqual(cloud.names(), []);
  });

  for (const [kind, asked] of [
    ['the same', request],
    ['another', { ...request, image: 'other' }],
  ] as const) {
    test(`give their places to whoever waits for one of ${kind} kind, also while they are being made`, async () => {
      const { cloud, worker } = await openPlace({ startMs: 300 });
      const warm = new WarmSandboxes(worker({ quota: 2 }), 1);
      await (await warm.take(request, { owner, deadlineS: 60, signal })).end();
      await until('one that is being made', async () => cloud.created === 2);
      const both = await Promise.all([1, 2].map(() => warm.take(asked, { owner, deadlineS: 20, signal })));
      assert.ok(cloud.most <= 2);
      await Promise.all(both.map(({ end }) => end()));
      await warm.close();
      assert.deepEqual(cloud.names(), []);
    });
  }
});

test('snapshots of rollouts are kept while the workflow that they are for is at work: a run, an evaluation or a search', async () => {
  const { leases, sweep } = await openPlace();
  const snapshots = new StoredSnapshots(leases, thisWorker());
  async function* tar(): AsyncGenerator<Uint8Array> {
    yield Buffer.from('tar');
  }
  const keys = ['a%20run/main/1/0/1-x', 'a%20run/main.2/1/0/1-x', 'gepa%2Fx/search%20/1/0/1-x'];
  keys.push('ended/main/1/0/1-x', 'ended/evaluation%20/1/0/1-x', 'ended/search%20/1/0/1-x');
  for (const key of keys) await snapshots.put(`rollouts/${key}`, tar());
  await sweep({ isWorkflowRunning: async (id) => id === 'a run' || id === 'gepa/x' });
  const left = (await leases.store.list('')).flatMap((key) => key.split('/rollouts/')[1] ?? []);
  assert.deepEqual(left.toSorted(), keys.filter((key) => !key.startsWith('ended')).toSorted());
});

test('snapshots in the store are read as they were written, or not at all', async () => {
  const leases = new LeaseStore(pathToFileURL(path.join(root, 'snapshots')).href);
  const snapshots = new StoredSnapshots(leases, thisWorker());
  const bytes = Buffer.alloc(9_000_000, 'tar');
  async function* parts(): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < bytes.length; at += 1_000_000) yield bytes.subarray(at, at + 1_000_000);
  }
  const ref = await snapshots.put('run/one', parts());
  const read: Uint8Array[] = [];
  for await (const part of snapshots.open(ref)) read.push(part);
  assert.ok(Buffer.concat(read).equals(bytes));
  await writeFile(path.join(root, 'snapshots/sandboxes/snapshots/run/one'), Buffer.alloc(9_000_000, 'bad'));
  const damaged = async (): Promise<void> => {
    for await (const _ of snapshots.open(ref));
  };
  await assert.rejects(damaged(), { code: 'CheckpointDamaged' });
  await snapshots.remove('run/');
  await assert.rejects(damaged(), { code: 'CheckpointDamaged' });
});

test('snapshots of a set-up go with the process that made them, and with no other', async () => {
  const { leases, sweep } = await openPlace();
  const of = (worker: string) => new StoredSnapshots(leases, worker);
  const [here, elsewhere] = [thisWorker(), 'another-host:1:2'];
  async function* bytes(text: string): AsyncGenerator<Uint8Array> {
    yield Buffer.from(text);
  }
  const read = async (ref: SnapshotRef): Promise<string> => {
    let said = '';
    for await (const part of of(here).open(ref)) said += Buffer.from(part).toString();
    return said;
  };
  const save = (worker: string, text: string) => of(worker).put(`${ofThisProcess}setup-abc`, bytes(text));
  const [mine, dead, far, rollouts] = [await save(here, 'mine'), await save(gone.worker, 'dead'), await save(elsewhere, 'far'), await of(here).put('run/one', bytes('run'))]; // prettier-ignore
  assert.deepEqual((await sweep()).forgotten, [gone.worker]);
  await assert.rejects(read(dead), { code: 'CheckpointDamaged' });
  assert.deepEqual([await read(mine), await read(far), await read(rollouts)], ['mine', 'far', 'run']);
  assert.deepEqual((await sweep({ nowMs: Date.now() + 9 * 86_400_000 })).forgotten, [elsewhere]);
  assert.deepEqual([await read(mine), await read(rollouts)], ['mine', 'run']);
});
