import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { forgetSnapshots, sandboxesFor } from '../../../play/sandboxes/rollout-sandboxes.ts';
import { leaseAttempt } from '../../../play/sandboxes/lease-owner.ts';
import { LeaseStore, sandboxKeys } from '../../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../../runs/sandboxes/stored-snapshots.ts';
import { closeProcesses } from '../../../host/processes-open.ts';
import type { EnvironmentEntry } from '../../../backends/environments/index.ts';
import { canSandbox, missingSandbox } from '../../environments/sandbox-here.ts';

const skip = (await canSandbox()) ? false : missingSandbox;

test('a sandbox is taken, saved, and begun again from what the store has', { skip }, async () => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-open-leases-'));
  const pool = { provider: { kind: 'namespace', python: 'python3' }, quota: 1, warm: 0, costPerHour: 0 } as const;
  const program = { sandbox: { pool } } as unknown as NonNullable<EnvironmentEntry['program']>;
  const sandboxes = sandboxesFor({ program }, { store: pathToFileURL(folder).href, run: 'run' })!;
  const request = { limits: { memoryMb: 200, diskMb: 5, seconds: 60 }, network: 'route' } as const;
  const options = { deadlineS: 60, signal: new AbortController().signal };
  try {
    const first = await sandboxes.take(request, options);
    await first.sandbox.write('kept', Buffer.from('saved'));
    const snapshot = await first.sandbox.snapshot!({ key: 'run/one', bytesMax: 1e6 });
    assert.ok((await first.end()).seconds > 0);
    const second = await sandboxes.take({ ...request, snapshot }, options);
    assert.equal((await second.sandbox.read('kept', 9)).toString(), 'saved');
    await second.end();
  } finally {
    await closeProcesses();
    await rm(folder, { recursive: true, force: true });
  }
});

test('snapshots of a stored rollout are removed, and those of the others of its group stay', async () => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-open-leases-'));
  const store = pathToFileURL(folder).href;
  const pool = { provider: { kind: 'namespace', python: 'python3' }, quota: 1, warm: 0, costPerHour: 0 } as const;
  const resume = { command: ['agent', '--resume'], every: 1, delayS: 0 };
  const program = { sandbox: { pool }, resume } as unknown as NonNullable<EnvironmentEntry['program']>;
  const snapshots = new StoredSnapshots(new LeaseStore(store), 'worker');
  const save = async (group: string, index: number): Promise<string> => {
    const { snapshotPrefix } = sandboxesFor({ program }, { store, run: 'run', lineage: 'main', group, index })!;
    return (await snapshots.put(`${snapshotPrefix}1`, Readable.from([Buffer.from('work')]))).key;
  };
  const left = async (): Promise<string[]> =>
    (await new LeaseStore(store).store.list(sandboxKeys.snapshots())).map((key) => key.slice(sandboxKeys.snapshots().length)); // prettier-ignore
  try {
    const [first, second, tenth] = [await save('1', 0), await save('1', 1), await save('10', 0)];
    const of = { store, run: 'run', lineage: 'main', group: '1' };
    await forgetSnapshots({ program: { ...program, resume: null } }, of);
    assert.deepEqual((await left()).toSorted(), [first, second, tenth].toSorted());
    await forgetSnapshots({ program }, { ...of, index: 0 });
    assert.deepEqual((await left()).toSorted(), [second, tenth].toSorted());
    await forgetSnapshots({ program }, of);
    assert.deepEqual(await left(), [tenth]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test('a later attempt of an activity, or of a chunk, ends the sandbox that an earlier one left', { skip }, async () => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-open-leases-'));
  const pool = { provider: { kind: 'namespace', python: 'python3' }, quota: 1, warm: 0, costPerHour: 0 } as const;
  const program = { sandbox: { pool } } as unknown as NonNullable<EnvironmentEntry['program']>;
  const rollout = { store: pathToFileURL(folder).href, run: 'run', lineage: 'main', group: '0', index: 0 };
  const request = { limits: { memoryMb: 200, diskMb: 5, seconds: 60 }, network: 'route' } as const;
  const take = (attempt: number) =>
    sandboxesFor({ program }, { ...rollout, attempt })!.take(request, {
      deadlineS: 60,
      signal: AbortSignal.timeout(30_000),
    });
  try {
    await take(leaseAttempt(1, 1)); // its worker hangs: nobody ends it, and it has the only place
    await take(leaseAttempt(1, 2));
    const last = await take(leaseAttempt(2, 1));
    const leases = new LeaseStore(rollout.store);
    assert.deepEqual([...(await leases.openNames())], [last.lease.name]);
    const ended = (await Promise.all((await leases.endedDays()).map((day) => leases.ended(day)))).flat();
    assert.deepEqual(
      ended.map(({ why }) => why),
      ['superseded', 'superseded'],
    );
  } finally {
    await closeProcesses();
    await rm(folder, { recursive: true, force: true });
  }
});
