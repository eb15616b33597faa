import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { openRunStore, resolveStoreUri, type Store } from '../../store/index.ts';
import { SeenStore } from '../../store/seen-store.ts';
import { FileStore } from '../../store/file-store.ts';
import { requireStore, storeOf } from '../../runs/run-access.ts';
import { bytes, hasCode, text } from './store.contract.ts';

const begunAt = '2026-11-28T09:16';

/** A run that was created in a folder which can disappear. */
async function begun(t: TestContext): Promise<{ run: Parameters<typeof storeOf>[0]; outputs: string; store: Store }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-seen-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const outputs = path.join(folder, 'outputs');
  const uri = resolveStoreUri(outputs, folder);
  const first = openRunStore(uri, 'words');
  await first.put('run.json', bytes(JSON.stringify({ schemaVersion: 1, name: 'words', begunAt, spec: {} })));
  const run = { name: 'words', store: uri, begunAt, spec: await first.put('specs/a.json', bytes('{}')) };
  return { run, outputs, store: storeOf(run) };
}

const operations: Readonly<Record<string, (store: Store) => Promise<unknown>>> = {
  put: (store) => store.put('a/b/c', bytes('1')),
  putFile: (store) => store.putFile('a/b/c', '/etc/hostname'),
  putIfAbsent: (store) => store.putIfAbsent('a/b/c', bytes('1')),
  append: (store) => store.append('logs/x.log', 'line\n'),
  removeAll: (store) => store.removeAll('a/'),
  read: (store) => store.read('never'),
  list: (store) => store.list('never/'),
  get: (store) => store.get({ key: 'never', sha256: '0'.repeat(64), bytes: 1 }),
  verify: (store) => store.verify({ key: 'never', sha256: '0'.repeat(64), bytes: 1 }),
  'a folder for a program': (store) => store.staging!.folder('pending/step_1/'),
};

describe('a store in which something was created', () => {
  test('is like any other while it is seen: a missing object is missing', async (t) => {
    const { store } = await begun(t);
    assert.equal(await store.read('never'), null);
    assert.deepEqual(await store.list('never/'), []);
    const ref = await store.put('a/b/c', bytes('1'));
    assert.equal(text(await store.get(ref)), '1');
    await assert.rejects(store.get({ ...ref, key: 'never' }), hasCode('CheckpointDamaged', 'never is missing'));
  });

  for (const [name, operation] of Object.entries(operations)) {
    test(`${name}: an empty mount point is not the store, and nothing is created there`, async (t) => {
      const { store, outputs } = await begun(t);
      await rename(outputs, `${outputs}.away`);
      await mkdir(outputs);
      await assert.rejects(operation(store), hasCode('StoreNotSeen', store.uri, 'no such folder'));
      assert.deepEqual(await readdir(outputs), []);
      await rm(outputs, { recursive: true });
      await assert.rejects(operation(store), hasCode('StoreNotSeen', store.uri));
      await assert.rejects(readdir(outputs), { code: 'ENOENT' });
      await rename(`${outputs}.away`, outputs);
      await operation(store).catch((error: unknown) => assert(hasCode('CheckpointDamaged')(error)));
    });
  }

  test('is not the run if its folder is empty or holds something else', async (t) => {
    const { store, outputs } = await begun(t);
    await rename(path.join(outputs, 'words'), path.join(outputs, 'away'));
    await mkdir(path.join(outputs, 'words'));
    await assert.rejects(store.read('never'), hasCode('StoreNotSeen', 'an empty folder'));
    await writeFile(path.join(outputs, 'words/other'), '');
    await assert.rejects(store.put('k', bytes('1')), hasCode('StoreNotSeen', '1 other entries'));
    assert.deepEqual(await readdir(path.join(outputs, 'words')), ['other']);
  });

  test('is not the run if another run of the same name was created at another time on this machine', async (t) => {
    const { store, outputs } = await begun(t);
    const other = JSON.stringify({ schemaVersion: 1, name: 'words', begunAt: '2026-11-01T08:00', spec: {} });
    await writeFile(path.join(outputs, 'words/run.json'), other);
    await assert.rejects(store.put('k', bytes('1')), hasCode('StoreNotSeen', begunAt, '2026-11-01T08:00'));
    await assert.rejects(store.read('never'), hasCode('StoreNotSeen'));
  });

  test('is not seen on a stale mount or without permission, and the error quotes the system', async () => {
    const uri = 'file:///srv/outputs/words/';
    for (const code of ['ESTALE', 'EIO', 'ENOTCONN', 'EACCES']) {
      const refuse = () => Promise.reject(Object.assign(new Error(`${code}: said`), { code, errno: -1 }));
      const stale: Pick<Store, 'uri' | 'read' | 'get' | 'put'> = { uri, read: refuse, get: refuse, put: refuse };
      const store = new SeenStore(stale as Store, { key: 'run.json', is: '', differs: () => null });
      for (const ask of [store.read('k'), store.get({ key: 'k', sha256: '', bytes: 0 }), store.put('k', bytes(''))])
        await assert.rejects(ask, hasCode('StoreNotSeen', uri, code, 'Mount the folder there'));
    }
  });

  test('behind a link that leads nowhere any more is not recreated', async (t) => {
    const { store, outputs } = await begun(t);
    await rename(outputs, `${outputs}.real`);
    await symlink(`${outputs}.gone`, outputs);
    await assert.rejects(store.put('k', bytes('1')), hasCode('StoreNotSeen'));
    await assert.rejects(readdir(`${outputs}.gone`), { code: 'ENOENT' });
  });

  test('whose run has no creation time is recognized by its settings', async (t) => {
    const { run, outputs } = await begun(t);
    const { begunAt: _, ...older } = run;
    await rm(path.join(outputs, 'words/run.json'));
    assert.equal(await storeOf(older).read('never'), null);
    await requireStore(older);
    await rm(path.join(outputs, 'words/specs'), { recursive: true });
    await assert.rejects(requireStore(older), hasCode('StoreNotSeen', 'specs/a.json'));
  });

  test('whose folder disappeared between two steps of a write is not recreated', async (t) => {
    const { outputs } = await begun(t);
    const root = path.join(outputs, 'words');
    const store = new FileStore(root, { makesRoot: false });
    await store.put('a/b/c', bytes('1'));
    await rm(outputs, { recursive: true });
    await assert.rejects(store.put('a/b/d', bytes('1')), { code: 'ENOENT' });
    await assert.rejects(readdir(outputs), { code: 'ENOENT' });
  });
});
