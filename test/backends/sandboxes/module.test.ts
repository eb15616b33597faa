import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { openSandboxProvider } from '../../../backends/sandboxes/index.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

let folder: string;
before(async () => void (folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-own-sandboxes-'))));
after(() => rm(folder, { recursive: true, force: true }));

async function open(name: string, text: string, options = {}) {
  const file = path.join(folder, name);
  await writeFile(file, text);
  return openSandboxProvider({ kind: 'module', import: { path: file, sha256: null }, options }, snapshotsInMemory());
}

const request = {
  name: 'one',
  limits: { memoryMb: 1, diskMb: 1, seconds: 1 },
  network: 'route',
  labels: { project: 'p', owner: 'o' },
} as const;

test("a provider of the user's own is opened with its options, and asked for what was checked", async () => {
  const empty = pathToFileURL(path.join(import.meta.dirname, '../../stand-ins/sandboxes/empty-sandboxes.ts')).href;
  const provider = await open(
    'own.ts',
    `import { emptySandboxes } from ${JSON.stringify(empty)};\nexport default (options) => ({ ...emptySandboxes(), kind: options.called });`,
    { called: 'mine' },
  );
  assert.deepEqual([provider.kind, provider.traits.snapshots, provider.traits.showsFolders], ['mine', false, false]);
  assert.equal((await provider.create(request)).name, 'one');
  assert.deepEqual((await provider.list('p')).map(({ name }) => name), ['one']); // prettier-ignore
  await assert.rejects(provider.create({ ...request, name: 'No' }), { code: 'SandboxRefused' });
  await provider.destroy('one');
  assert.equal(await provider.find('one'), null);
});

test('a file that gives something else is refused, with what is missing', async () => {
  await assert.rejects(open('none.ts', 'export default () => ({ create() {}, list() {} });'), {
    code: 'Unsupported',
    message: /missing: find, destroy, close\./,
  });
  const all = 'find() {}, list() {}, destroy() {}, close() {}';
  const provider = await open('half.ts', `export default () => ({ create: () => ({ exec() {} }), ${all} });`);
  await assert.rejects(
    provider.create(request),
    /create\(\) must give a sandbox .* missing: start, read, write, destroy\./,
  );
});
