import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { thisWorker } from '../../play/sandboxes/lease-owner.ts';
import { LeaseStore } from '../../runs/sandboxes/lease-store.ts';
import { canSandbox, missingSandbox } from '../environments/sandbox-here.ts';
import { openCommands } from './typed.ts';

let folder: string;
before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-cli-sandboxes-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

const typed = openCommands();
const skip = (await canSandbox()) ? false : missingSandbox;

test('ratchet sandboxes lists who has one, and sweeps those of nobody', { skip }, async () => {
  const type = async (...words: string[]) => (await typed(folder, ['sandboxes', ...words])).out;
  assert.match(await type(), /no sandbox is leased/);
  const leases = new LeaseStore(pathToFileURL(path.join(folder, 'outputs')).href);
  const pool = await leases.addPool({ kind: 'namespace', python: 'python3' });
  const lease = (name: string, worker: string) => {
    const createdAtMs = Date.now();
    return { name, pool, owner: { run: 'repair', group: 'g7', index: 2, worker }, createdAtMs, deadlineAtMs: createdAtMs + 60_000, costPerHour: 1 }; // prettier-ignore
  };
  await leases.open(lease('kept', thisWorker()));
  await leases.open(lease('lost', `${os.hostname()}:${process.pid}:1`));
  const listed = await type('list');
  assert.match(listed, /^NAME +KIND +STATE +OWNER[^]*kept +namespace +waits +repair g7 2 /);
  assert.match(listed, /\nlost /);
  const swept = await type('sweep');
  assert.match(swept, /lost: ended \(worker gone\)\n2 leased, 1 of them ended, 0 without a lease destroyed/);
  assert.match(await type(), /RUN +ENDED +SECONDS +COST\nrepair +1 +0 +0\.00/);
  const { open, ended } = JSON.parse(await type('list', '--json')) as { open: object[]; ended: object[] };
  assert.deepEqual([open.length, ended], [1, [{ run: 'repair', sandboxes: 1, seconds: 0, cost: 0 }]]);
});
