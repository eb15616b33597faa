import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { thisWorker } from '../../host/worker-process.ts';
import { earlierWorker } from '../play/sandboxes/earlier-worker.ts';
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
  await leases.open(lease('lost', earlierWorker()));
  const listed = await type('list');
  assert.match(listed, /^NAME +KIND +STATE +OWNER[^]*kept +namespace +waits +repair g7 2 /);
  assert.match(listed, /\nlost /);
  const swept = await type('sweep');
  assert.match(swept, /lost: ended \(worker gone\)\n2 leased, 1 of them ended, 0 without a lease destroyed/);
  assert.match(await type(), /RUN +ENDED +SECONDS +COST\nrepair +1 +0 +0\.00/);
  const { open, ended } = JSON.parse(await type('list', '--json')) as { open: object[]; ended: object[] };
  assert.deepEqual([open.length, ended], [1, [{ run: 'repair', sandboxes: 1, seconds: 0, cost: 0 }]]);
});

test('a sweep of a folder that somebody else wrote executes and reaches nothing without a grant', async () => {
  const theirs = await mkdtemp(path.join(os.tmpdir(), 'ratchet-their-sandboxes-'));
  const [file, mark] = [path.join(theirs, 'provider.mjs'), path.join(theirs, 'ran')];
  try {
    await writeFile(file, `import { writeFileSync } from 'node:fs';\nwriteFileSync(${JSON.stringify(mark)}, '');\nexport default () => ({ create() {}, find() {}, list: () => [], destroy() {}, close() {} });\n`); // prettier-ignore
    const store = pathToFileURL(theirs).href;
    await new LeaseStore(store).addPool({ kind: 'module', import: { path: file, sha256: null }, options: {} });
    const sweep = ['sandboxes', 'sweep', '--store', store];
    const refused = await typed(folder, sweep);
    assert.match(refused.err, /names what you have not granted: .*provider\.mjs \(sha256 [^;]*; sandboxes of \{"import":.*"kind":"module".*Nothing was started: .*--grant/); // prettier-ignore
    assert.equal(existsSync(mark), false);
    const lines = [...refused.err.matchAll(/--grant ('[^']*'|\S+)/g)].map(([, line]) => line!.replaceAll("'", ''));
    const granted = await typed(folder, [...sweep, ...lines.flatMap((line) => ['--grant', line])]);
    assert.match(granted.out, /0 leased, 0 of them ended/);
    assert.equal(existsSync(mark), true);
  } finally {
    await rm(theirs, { recursive: true, force: true });
  }
});
