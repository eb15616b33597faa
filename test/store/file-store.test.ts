import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { FileStore } from '../../store/file-store.ts';
import { openRunStore, resolveStoreUri } from '../../store/index.ts';
import { putNow } from '../../store/put-thread.mjs';
import { type Put, putThreads } from '../../store/put-threads.ts';
import { bytes, hasCode, storeContract, text } from './store.contract.ts';

/** A store in a folder that does not exist yet, in a folder of its own. */
async function fresh(t: TestContext) {
  const outside = await mkdtemp(path.join(tmpdir(), 'ratchet-store-'));
  t.after(() => rm(outside, { recursive: true, force: true }));
  const root = path.join(outside, 'run');
  return { outside, root, store: new FileStore(root) };
}

storeContract('FileStore', async (t) => {
  const { root, store } = await fresh(t);
  return {
    store,
    other: new FileStore(root),
    async damage(key) {
      const content = await readFile(path.join(root, key));
      content[0]! ^= 1;
      await writeFile(path.join(root, key), content);
    },
  };
});

type Call = 'open' | 'appendFile' | 'mkdir' | 'unlink';
type SyncCall = 'openSync' | 'linkSync' | 'unlinkSync' | 'renameSync' | 'writeSync' | 'fsyncSync';

const simulated = (code: string) => Object.assign(new Error(`${code}: simulated`), { code });
const failure = (code: string) => () => Promise.reject(simulated(code));

/** While `work` runs, one call of node:fs/promises is another. */
async function withCall(t: TestContext, name: Call, call: (...args: never[]) => unknown, work: () => Promise<void>) {
  await mocked(t.mock.method(fs.promises, name, call), work);
}

/** While `work` runs, one call of node:fs is another. Puts are made in this thread: its calls are those that can be replaced. */
async function withSyncCall(
  t: TestContext,
  name: SyncCall,
  call: (...args: never[]) => unknown,
  work: () => Promise<void>,
) {
  const { mock } = t.mock.method(putThreads, 'put', async (put: Put) => putNow(put));
  await mocked(t.mock.method(fs, name, call), work);
  mock.restore();
}

async function mocked({ mock }: { readonly mock: { restore(): void } }, work: () => Promise<void>) {
  syncBuiltinESMExports();
  try {
    await work();
  } finally {
    mock.restore();
    syncBuiltinESMExports();
  }
}

describe('a folder as a store', () => {
  test('what a killed writer left half-written is not in any list', async (t) => {
    const { root, store } = await fresh(t);
    await store.put('weights/step_1/config.json', bytes('{}'));
    await writeFile(path.join(root, 'weights/step_1', `.tmp-${randomUUID()}`), 'half of it');
    assert.deepEqual(await store.list('weights/'), ['weights/step_1/config.json']);
  });

  test('a writer leaves nothing but its object, whether it wins or loses', async (t) => {
    const { root, store } = await fresh(t);
    await store.put('k', bytes('1'));
    await store.putIfAbsent('k', bytes('2'));
    await store.putIfAbsent('l', bytes('3'));
    assert.deepEqual((await readdir(root)).sort(), ['k', 'l']);
  });

  test('an object is stored also where its temporary file stays, which is a leftover then', async (t) => {
    const { root, store } = await fresh(t);
    const failing = () => {
      throw simulated('EIO');
    };
    await withSyncCall(t, 'unlinkSync', failing, async () => {
      assert.equal((await store.putIfAbsent('k', bytes('1'))).stored, true);
      assert.equal(text((await store.putIfAbsent('k', bytes('2'))).bytes), '1');
      await mkdir(path.join(root, 'taken', 'below'), { recursive: true });
      await assert.rejects(
        store.put('taken', bytes('1')),
        { code: 'CheckpointDamaged' },
        'its own failure, not that of the file',
      );
    });
    assert.equal(text(await store.read('k')), '1');
    assert.deepEqual(await store.list(''), ['k']);
    assert.equal((await store.leftovers(0)).length, 3);
  });

  test('an object is on the disk before it has its name', { skip: process.platform !== 'linux' }, async (t) => {
    const { store } = await fresh(t);
    const synced = new Set<string>();
    const named: string[] = [];
    const { fsyncSync, readlinkSync } = fs;
    const sync = (file: number) => {
      synced.add(path.basename(readlinkSync(`/proc/self/fd/${file}`)));
      fsyncSync(file);
    };
    await withSyncCall(t, 'fsyncSync', sync, async () => {
      for (const name of ['linkSync', 'renameSync'] as const) {
        const original = fs[name];
        const call = (from: string, to: string) => {
          assert(synced.has(path.basename(from)), `${path.basename(to)} has its name before its bytes are on the disk`);
          named.push(path.basename(to));
          original(from, to);
        };
        await withSyncCall(t, name, call, async () => {
          await (name === 'linkSync' ? store.putIfAbsent('b', bytes('one')) : store.put('c', bytes('two')));
        });
      }
    });
    assert.deepEqual(named, ['b', 'c']);
    assert(synced.has('run'), 'the folder, too');
  });

  test('a write that fails leaves no temporary file behind', async (t) => {
    const { root, store } = await fresh(t);
    await mkdir(path.join(root, 'taken', 'below'), { recursive: true });
    await assert.rejects(store.put('taken', bytes('1')));
    assert.deepEqual(await readdir(root), ['taken']);
  });

  for (const operation of ['open', 'appendFile', 'mkdir'] as const) {
    test(`a full disk (${operation}) is StoreFull, which is worth trying again`, async (t) => {
      const { store } = await fresh(t);
      const write = () => (operation === 'appendFile' ? store.append('a/k', '1') : store.put('a/k', bytes('1')));
      await withCall(t, operation, failure('ENOSPC'), async () => {
        await assert.rejects(write, hasCode('StoreFull', 'No space left', 'a/k'));
      });
      await write();
      assert.equal(text(await store.read('a/k')), '1');
    });
  }

  for (const operation of ['openSync', 'writeSync', 'fsyncSync', 'linkSync', 'renameSync'] as const) {
    test(`a full disk (${operation}) is StoreFull, and nothing half-written stays`, async (t) => {
      const { root, store } = await fresh(t);
      const write = () => (operation === 'linkSync' ? store.putIfAbsent('k', bytes('1')) : store.put('k', bytes('1')));
      const full = () => {
        throw simulated('ENOSPC');
      };
      await withSyncCall(t, operation, full, async () => {
        await assert.rejects(write, hasCode('StoreFull', 'No space left', 'k'));
      });
      assert.deepEqual(await readdir(root), []);
      await write();
      assert.equal(text(await store.read('k')), '1');
    });
  }

  test('a folder that may not be written is StoreUnavailable and names the key', async (t) => {
    const { store } = await fresh(t);
    await withCall(t, 'open', failure('EACCES'), async () => {
      await assert.rejects(store.put('a/k', bytes('1')), hasCode('StoreUnavailable', 'a/k', 'simulated'));
    });
  });

  test('a folder that may not be removed is StoreUnavailable and names the prefix', async (t) => {
    const { store } = await fresh(t);
    await store.put('a/k', bytes('1'));
    await withCall(t, 'unlink', failure('EACCES'), async () => {
      await assert.rejects(store.removeAll('a/'), hasCode('StoreUnavailable', 'a/'));
    });
  });

  test('a local folder is where the objects are', async (t) => {
    const { root, store } = await fresh(t);
    await store.put('weights/step_1/config.json', bytes('{}'));
    const folder = await store.localFolder('weights/step_1/');
    assert.equal(folder, path.join(root, 'weights/step_1'));
    assert.equal(await readFile(path.join(folder, 'config.json'), 'utf8'), '{}');
    assert.equal(fileURLToPath(store.uri), `${root}/`);
  });

  test('what is no name of a run opens no folder', () => {
    for (const run of ['..', '../other', 'a/b', '/etc', '.ratchet', '']) {
      assert.throws(() => openRunStore('file:///tmp/outputs/', run), hasCode('ConfigInvalid', 'is no name of a run'));
    }
  });

  test('a run folder that is itself reached through a link works', async (t) => {
    const { outside, root, store } = await fresh(t);
    await store.put('a/k', bytes('1'));
    await symlink(root, path.join(outside, 'alias'));
    const alias = new FileStore(path.join(outside, 'alias'));
    assert.deepEqual(await alias.list(''), ['a/k']);
    await alias.put('b/k', bytes('2'));
    assert.equal(text(await store.read('b/k')), '2');
  });

  test('a folder in the place of an object gives way where it holds nothing, and is damage where it holds something', async (t) => {
    const { root, store } = await fresh(t);
    await mkdir(path.join(root, 'a/empty'), { recursive: true });
    await store.put('a/empty', bytes('1'));
    assert.equal(text(await store.read('a/empty')), '1');
    await mkdir(path.join(root, 'a/held/something'), { recursive: true });
    await assert.rejects(store.put('a/held', bytes('2')), hasCode('CheckpointDamaged', 'a/held', 'found a folder'));
    assert.deepEqual(await readdir(path.join(root, 'a')), ['empty', 'held']);
  });

  test('what waits takes the place of whatever is there, a folder of a file and a file of a folder', async (t) => {
    const { root, store } = await fresh(t);
    await store.put('staged/weights/k', bytes('1'));
    await store.put('staged/file', bytes('2'));
    await store.put('weights', bytes('in the way'));
    await mkdir(path.join(root, 'file/something'), { recursive: true });
    assert(await store.staging.settle('staged/weights/', 'weights/'));
    assert(await store.staging.settle('staged/file', 'file'));
    assert.equal(text(await store.read('weights/k')), '1');
    assert.equal(text(await store.read('file')), '2');
  });

  test('a file of another size is not read through to find that it is another', async (t) => {
    const { root, store } = await fresh(t);
    const ref = await store.put('k', bytes('1'));
    await truncate(path.join(root, 'k'), 64e9);
    await assert.rejects(store.verify(ref), hasCode('CheckpointDamaged', 'expected 1 bytes'));
  });

  describe('a link that leads out of the run is refused', () => {
    const cases = {
      'to a folder elsewhere': (outside: string) => path.join(outside, 'elsewhere'),
      'to the folder that holds all runs': (outside: string) => outside,
    };
    for (const [name, target] of Object.entries(cases)) {
      test(name, async (t) => {
        const { outside, root, store } = await fresh(t);
        await mkdir(path.join(outside, 'elsewhere'));
        await writeFile(path.join(outside, 'secret'), 'secret');
        await writeFile(path.join(outside, 'elsewhere', 'secret'), 'secret');
        await mkdir(root);
        await symlink(target(outside), path.join(root, 'link'));
        const refused = hasCode('Unsupported', 'link');
        await assert.rejects(store.read('link/secret'), refused);
        await assert.rejects(store.put('link/k', bytes('1')), refused);
        await assert.rejects(store.putIfAbsent('link/deep/k', bytes('1')), refused);
        await assert.rejects(store.append('link/secret', 'more'), refused);
        await assert.rejects(store.list('link/'), refused);
        await assert.rejects(store.removeAll('link/secret'), refused);
        await assert.rejects(store.localFolder('link/'), refused);
        assert.equal(await readFile(path.join(outside, 'secret'), 'utf8'), 'secret');
      });
    }

    test('to a file elsewhere', async (t) => {
      const { outside, root, store } = await fresh(t);
      await writeFile(path.join(outside, 'secret'), 'secret');
      await mkdir(root);
      await symlink(path.join(outside, 'secret'), path.join(root, 'k'));
      await assert.rejects(store.read('k'), hasCode('Unsupported', 'k'));
      await assert.rejects(store.append('k', 'more'), hasCode('Unsupported', 'k'));
      assert.deepEqual(await store.list(''), ['k']);
      assert.equal(await readFile(path.join(outside, 'secret'), 'utf8'), 'secret');
    });

    test('to a place that does not exist yet', async (t) => {
      const { outside, root, store } = await fresh(t);
      await mkdir(root);
      await symlink(path.join(outside, 'later'), path.join(root, 'k'));
      await assert.rejects(store.append('k', 'line\n'), hasCode('Unsupported', 'k'));
      assert.deepEqual(await readdir(outside), ['run']);
    });
  });
});

describe('where the store is', () => {
  const cases: readonly (readonly [uri: string, expected: string])[] = [
    ['file:outputs', '/home/me/project/outputs/'],
    ['outputs', '/home/me/project/outputs/'],
    ['file:../runs', '/home/me/runs/'],
    ['/data/runs', '/data/runs/'],
    ['file:/data/runs', '/data/runs/'],
    ['file:///data/runs', '/data/runs/'],
    ['file:///data/runs/', '/data/runs/'],
    ['file:my runs #1, 50%', '/home/me/project/my runs #1, 50%/'],
  ];
  for (const [uri, expected] of cases) {
    test(`"${uri}" is ${expected}`, () => {
      const resolved = resolveStoreUri(uri, '/home/me/project');
      assert(resolved.startsWith('file:///'));
      assert.equal(fileURLToPath(resolved), expected);
      assert.equal(openRunStore(resolved, 'r').uri, `${resolved}r/`);
    });
  }

  test('a store of another kind is refused by its setting', () => {
    assert.throws(
      () => resolveStoreUri('gs://bucket/runs', '/p'),
      hasCode('ConfigInvalid', 'store.uri', 'gs://bucket/runs', 's3://'),
    );
  });
});
