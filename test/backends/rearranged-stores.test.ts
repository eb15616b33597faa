/** A store's folder may be another user's: whatever they put there, nothing outside of it is read, changed or waited for. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import {
  chmod,
  chown,
  lchown,
  lstat,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { FileStore } from '../../store/file-store.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { type MadeVersion, PendingVersions } from '../../learn/pending-versions.ts';
import { sumFolder, verifyVersion } from '../../store/version-files.ts';
import { withFileSource } from '../../store/s3-upload.ts';
import { weightsFolder } from '../../store/weights-folder.ts';
import { openFolder, openRegular } from '../../host/regular-file.ts';
import { bytes, hasCode, text } from '../store/store.contract.ts';

const secretText = 'a key of the user\n';
const part = (offset: number): string => String(offset).padStart(15, '0');

interface Place {
  readonly store: FileStore;
  readonly root: string;
  /** The user's own things: a file `secret`, and a folder `private` with one of the same content. */
  readonly home: string;
  readonly secret: string;
}

async function places(t: TestContext): Promise<Place> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-rearranged-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const [root, home] = [path.join(folder, 'theirs', 'run'), path.join(folder, 'home')];
  const secret = path.join(home, 'secret');
  await mkdir(root, { recursive: true });
  await mkdir(path.join(home, 'private'), { recursive: true });
  await writeFile(secret, secretText);
  await writeFile(path.join(home, 'private', 'secret'), secretText);
  return { store: new FileStore(root), root, home, secret };
}

/** All of a folder: files by content, links by where they lead, and the rest by kind. */
async function contentOf(folder: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const file = path.join(entry.parentPath, entry.name);
    const name = path.relative(folder, file);
    if (entry.isFile()) found[name] = await readFile(file, 'utf8');
    else found[name] = entry.isSymbolicLink() ? 'link' : entry.isFIFO() ? 'FIFO' : 'folder';
  }
  return found;
}

/** A log with a tail, of which one part is made by `put`. */
async function logWithTail(root: string, put: (file: string) => unknown): Promise<string> {
  const tail = path.join(root, 'metrics.jsonl.tail');
  await writeFile(path.join(root, 'metrics.jsonl'), 'one\n');
  await mkdir(tail);
  await put(path.join(tail, part(4)));
  return tail;
}

const fifo = (file: string): unknown => execFileSync('mkfifo', [file]);

test('a tail that S3 left is read with its log and changes nothing; whoever appends folds it', async (t) => {
  const { store, root } = await places(t);
  const tail = await logWithTail(root, (file) => writeFile(file, 'two\n'));
  await writeFile(path.join(tail, part(0)), 'held by the body already\n');
  await writeFile(path.join(tail, part(8)), 'three\n');
  const before = await contentOf(root);
  for (let turn = 0; turn < 2; turn += 1) {
    assert.equal(text(await store.read('metrics.jsonl')), 'one\ntwo\nthree\n');
    assert.equal(text(await store.readFrom('metrics.jsonl', 4)), 'two\nthree\n');
    assert.equal(text(await store.readFrom('metrics.jsonl', 14)), '');
    assert.equal(await store.readFrom('metrics.jsonl', 15), null);
    assert.deepEqual(await store.list(''), ['metrics.jsonl']);
    assert.deepEqual(await contentOf(root), before);
  }
  await Promise.all([store.append('metrics.jsonl', 'four\n'), store.append('metrics.jsonl', 'four\n')]);
  assert.deepEqual((await readdir(root)).sort(), ['metrics.jsonl']);
  const lines = (await readFile(path.join(root, 'metrics.jsonl'), 'utf8')).split('\n');
  assert.deepEqual(lines.toSorted(), ['', 'four', 'four', 'one', 'three', 'two']);
  assert.ok(lines.indexOf('two') + 1 === lines.indexOf('three'));
  // A log that is removed takes its tail along: the next one of this name is another.
  await mkdir(tail);
  await writeFile(path.join(tail, part(90)), 'old\n');
  await store.removeAll('metrics.jsonl');
  assert.equal(await store.read('metrics.jsonl'), null);
});

test('a tail with a link, a FIFO or a device in it is refused by name, by reading and by appending', async (t) => {
  for (const [found, put] of [
    ['a link', (secret: string, file: string) => symlink(secret, file)],
    ['a FIFO', (_: string, file: string) => fifo(file)],
    ['a folder', (_: string, file: string) => mkdir(file)],
    ['a link', (_: string, file: string) => symlink('/dev/zero', file)],
  ] as const) {
    const { store, root, secret } = await places(t);
    await logWithTail(root, (file) => put(secret, file));
    const before = await contentOf(root);
    const refused = hasCode('CheckpointDamaged', `metrics.jsonl.tail/${part(4)}: expected a file`, `found ${found}`);
    await assert.rejects(store.read('metrics.jsonl'), refused);
    await assert.rejects(store.readFrom('metrics.jsonl', 0), refused);
    await assert.rejects(store.append('metrics.jsonl', 'more\n'), refused);
    assert.deepEqual(await contentOf(root), before, 'also the tail is where it was');
  }
});

test('a tail that is a link itself, or larger than any tail, is refused', async (t) => {
  const { store, root, home } = await places(t);
  const elsewhere = path.join(home, 'private');
  await writeFile(path.join(elsewhere, part(4)), secretText);
  await writeFile(path.join(root, 'metrics.jsonl'), 'one\n');
  await symlink(elsewhere, path.join(root, 'metrics.jsonl.tail'));
  const refused = hasCode('CheckpointDamaged', 'metrics.jsonl.tail', 'expected a folder', 'found a link');
  await assert.rejects(store.read('metrics.jsonl'), refused);
  await assert.rejects(store.append('metrics.jsonl', 'more\n'), refused);
  assert.equal(await readFile(path.join(root, 'metrics.jsonl'), 'utf8'), 'one\n');
  await rm(path.join(root, 'metrics.jsonl.tail'));

  const tail = path.join(root, 'metrics.jsonl.tail');
  await mkdir(tail);
  const large = await open(path.join(tail, part(4)), 'w');
  await large.truncate(300e6);
  await large.close();
  await assert.rejects(store.read('metrics.jsonl'), hasCode('CheckpointDamaged', part(4), 'more than'));
});

test('appending goes to no file elsewhere, also where the log becomes a link after its tail was read', async (t) => {
  const { store, root, secret } = await places(t);
  await logWithTail(root, (file) => writeFile(file, 'ssh-ed25519 evil\n'));
  const log = path.join(root, 'metrics.jsonl');
  // While the tail is taken away, as the exploit did: the log becomes a link.
  const { mock } = t.mock.method(fs.promises, 'rename', async (...args: [string, string]) => {
    mock.restore();
    syncBuiltinESMExports();
    await rm(log);
    await symlink(secret, log);
    return rename(...args);
  });
  syncBuiltinESMExports();
  await store.append('metrics.jsonl', 'more\n');
  assert.equal(await readFile(secret, 'utf8'), secretText);
  await assert.rejects(store.append('metrics.jsonl', 'more\n'), hasCode('Unsupported', 'metrics.jsonl', 'leads out'));
  // The same with the link from the beginning, and one that leads nowhere yet.
  for (const to of [secret, path.join(path.dirname(secret), 'later')]) {
    await rm(path.join(root, 'k.log'), { force: true });
    await symlink(to, path.join(root, 'k.log'));
    await assert.rejects(store.append('k.log', 'more\n'), hasCode('Unsupported', 'k.log'));
    await assert.rejects(store.read('k.log'), hasCode('Unsupported', 'k.log'));
    await assert.rejects(store.readFrom('k.log', 0), hasCode('Unsupported', 'k.log'));
    await assert.rejects(store.readRange('k.log', 0, 1), hasCode('Unsupported', 'k.log'));
    await assert.rejects(
      store.verify({ key: 'k.log', sha256: '0'.repeat(64), bytes: 0 }),
      hasCode('Unsupported', 'k.log'),
    );
  }
  assert.deepEqual((await readdir(path.dirname(secret))).sort(), ['private', 'secret']);
});

test(
  'no FIFO, socket or device keeps a store waiting, in place of a file or of a folder',
  { timeout: 30_000 },
  async (t) => {
    const { store, root } = await places(t);
    await mkdir(path.join(root, 'weights'));
    for (const name of ['k', 'k.log', 'weights/file']) fifo(path.join(root, name));
    const wrong = hasCode('CheckpointDamaged', 'expected a file', 'FIFO');
    for (const key of ['k', 'k.log', 'weights/file']) {
      await assert.rejects(store.read(key), wrong);
      await assert.rejects(store.readRange(key, 0, 1), wrong);
      await assert.rejects(store.readFrom(key, 0), wrong);
      await assert.rejects(store.append(key, 'more'), wrong);
      await assert.rejects(store.verify({ key, sha256: '0'.repeat(64), bytes: 0 }), wrong);
    }
    await assert.rejects(store.staging.seal('weights/'), wrong);
    await assert.rejects(store.putFile('copy', path.join(root, 'k')), (error: Error) =>
      /found a FIFO/.test(error.message),
    );
    await assert.rejects(
      withFileSource(path.join(root, 'k'), [root], () => Promise.resolve()),
      (error: Error) => /found a FIFO/.test(error.message),
    );
    // A FIFO where a folder is to be.
    assert.equal(await store.read('k/below'), null);
    assert.deepEqual(await store.list('k/'), []);
    await assert.rejects(store.put('k/below', bytes('1')));
    // It is removed, and gives way to what is stored.
    await store.put('k', bytes('1'));
    await store.removeAll('k.log');
    assert.deepEqual(await store.list(''), ['k', 'weights/file']);
  },
);

/** Does `swap` when a file or folder with this name is opened next, just before. */
function beforeOpening(t: TestContext, name: string, swap: () => Promise<unknown>): void {
  const real = fs.promises.open;
  const { mock } = t.mock.method(fs.promises, 'open', async (...args: Parameters<typeof real>) => {
    if (path.basename(String(args[0])) === name) {
      mock.restore();
      syncBuiltinESMExports();
      await swap();
    }
    return real(...args);
  });
  syncBuiltinESMExports();
}

test('a folder that becomes a link between the look and the opening leads nowhere', async (t) => {
  const { root, store, home } = await places(t);
  const folder = path.join(root, 'private');
  const swap = async () => {
    await rm(folder, { recursive: true, force: true });
    await symlink(path.join(home, 'private'), folder);
  };
  const before = await contentOf(home);
  const refused = hasCode('Unsupported', 'private');
  for (const [opened, work] of [
    ['secret', () => store.read('private/secret')],
    ['secret', () => store.readRange('private/secret', 0, 99)],
    ['secret', () => store.readFrom('private/secret', 0)],
    ['secret', () => store.get({ key: 'private/secret', sha256: '0'.repeat(64), bytes: 0 })],
    ['secret', () => store.verify({ key: 'private/secret', sha256: '0'.repeat(64), bytes: 0 })],
    ['private', () => store.list('private/')],
    ['private', () => store.append('private/secret', 'more')],
    ['private', () => store.put('private/secret', bytes('1'))],
    ['private', () => store.putIfAbsent('private/new', bytes('1'))],
    ['private', () => store.removeAll('private/secret')],
    ['private', () => store.staging.folder('private/deeper/')],
    ['private', () => store.staging.seal('private/')],
    ['private', () => store.staging.settle('k', 'private/k')],
    ['private', () => store.staging.settle('private/secret', 'k')],
  ] as const) {
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder);
    await writeFile(path.join(folder, 'secret'), 'theirs');
    await writeFile(path.join(root, 'k'), 'k');
    beforeOpening(t, opened, swap);
    await assert.rejects(
      work().then((value) => assert.fail(`${work.toString()}: ${JSON.stringify(value)}`)),
      refused,
    );
    assert.deepEqual(await contentOf(home), before, work.toString());
  }
});

test('a folder for a program stays the one that was opened, whatever takes its place while weights are written', async (t) => {
  const { root, store, home } = await places(t);
  const before = await contentOf(home);
  const staged = await store.staging.folder('pending/step_1.a/');
  assert.equal(staged.path, path.join(root, 'pending/step_1.a'));
  await mkdir(path.join(home, 'private', 'step_1.a'));
  await rename(root, `${root}.theirs`);
  await mkdir(root);
  await symlink(path.join(home, 'private'), path.join(root, 'pending'));
  await mkdir(path.join(staged.at, 'weights'), { recursive: true });
  // Another process of this user, as an engine is.
  execFileSync('sh', ['-c', 'echo ours > "$1/weights/secret"', 'sh', staged.at]);
  await staged.close();
  assert.deepEqual(await contentOf(home), { ...before, 'private/step_1.a': 'folder' });
  assert.equal(await readFile(`${root}.theirs/pending/step_1.a/weights/secret`, 'utf8'), 'ours\n');
});

test('a link that is put above a store while a version is written has nothing written or removed elsewhere', async (t) => {
  const { root, home } = await places(t);
  let before: Record<string, string> = {};
  const run = {
    name: 'run',
    store: `file://${path.dirname(root)}/`,
    lineage: 'main',
    spec: { key: 'specs/a.json', sha256: '', bytes: 0 },
    attempt: 1,
  } as unknown as RunHandle;
  const spec = await new FileStore(root).put('specs/a.json', bytes('{}'));
  const pending = new PendingVersions(path.join(home, 'unused'));
  const swap = async (folder: string): Promise<void> => {
    const [name] = await readdir(path.join(root, 'pending'));
    await mkdir(path.join(home, 'private', name!, 'weights'), { recursive: true });
    await writeFile(path.join(home, 'private', name!, 'weights', 'notes'), 'of the user');
    before = await contentOf(home);
    await rename(root, `${root}.theirs`);
    await mkdir(root);
    await symlink(path.join(home, 'private'), path.join(root, 'pending'));
    for (const file of ['config.json', 'model.safetensors']) await writeFile(path.join(folder, file), 'ours');
  };
  const version = { step: 1, digest: '0'.repeat(64) } as unknown as MadeVersion;
  const input = { version, write: swap, optimizer: null, canary: () => Promise.resolve(null) };
  await assert.rejects(pending.add({ ...run, spec }, input));
  const after = Object.entries(await contentOf(home)).filter(([, what]) => what !== 'folder');
  assert.deepEqual(
    after,
    Object.entries(before).filter(([, what]) => what !== 'folder'),
  );
});

test('a run whose folder is a link to itself is damage, whatever is asked of it', async (t) => {
  const { root } = await places(t);
  const loop = path.join(path.dirname(root), 'loop');
  await symlink(loop, loop);
  const store = new FileStore(loop);
  const wrong = hasCode('CheckpointDamaged', loop, 'found a link that leads to itself');
  for (const work of [
    () => store.read('k'),
    () => store.list(''),
    () => store.put('k', bytes('1')),
    () => store.removeAll(''),
    () => store.leftovers(0),
    () => store.localFolder(''),
    () => store.staging.folder('a/'),
  ])
    await assert.rejects(work, wrong, work.toString());
});

test('removing goes into no folder that becomes a link meanwhile, and listing into none either', async (t) => {
  const { root, store, home } = await places(t);
  const before = await contentOf(home);
  await mkdir(path.join(root, 'old/private'), { recursive: true });
  await writeFile(path.join(root, 'old/private/secret'), 'theirs');
  const swap = async () => {
    await rm(path.join(root, 'old/private'), { recursive: true });
    await symlink(path.join(home, 'private'), path.join(root, 'old/private'));
  };
  beforeOpening(t, 'private', swap);
  await assert.rejects(store.removeAll('old/'));
  assert.deepEqual(await contentOf(home), before);
  await store.removeAll('old/'); // the link itself goes
  assert.deepEqual(await readdir(root), []);
  await mkdir(path.join(root, 'old/private'), { recursive: true });
  beforeOpening(t, 'private', swap);
  await assert.rejects(store.list(''), hasCode('Unsupported'));
  assert.deepEqual(await store.leftovers(0), []);
});

test(
  'a folder is used where it was opened, whatever its path leads to then',
  { skip: process.platform !== 'linux' },
  async (t) => {
    const { root, home } = await places(t);
    await mkdir(path.join(root, 'a'));
    const folder = await openFolder(path.join(root, 'a'), { within: [root] });
    t.after(() => folder.close());
    await rename(path.join(root, 'a'), path.join(root, 'b'));
    await symlink(home, path.join(root, 'a'));
    await writeFile(folder.at('k'), '1');
    assert.deepEqual(await readdir(path.join(root, 'b')), ['k']);
    assert.deepEqual((await readdir(home)).sort(), ['private', 'secret']);
    await assert.rejects(openFolder(path.join(root, 'a'), { within: [root] }), /leads out of/);
    await assert.rejects(openFolder(path.join(root, 'a'), { links: 'refused' }), /found a link/);
    // Real paths are not resolved again: a root that becomes a link contains nothing.
    await rename(root, `${root}.moved`);
    await symlink(home, root);
    await assert.rejects(openRegular(path.join(root, 'secret'), { reallyWithin: [root] }), /leads out of/);
  },
);

test('the files of a version are no links to files elsewhere, by whichever way they are read', async (t) => {
  const { root, store, secret } = await places(t);
  const folder = path.join(root, 'weights/step_1');
  await mkdir(folder, { recursive: true });
  for (const name of ['config.json', 'model.safetensors']) await writeFile(path.join(folder, name), '{}');
  const { file, sums } = await sumFolder(store, folder, 'weights/step_1/');
  const version = { weights: 'weights/step_1/', file, sums };
  await verifyVersion(store, version);
  for (const name of ['config.json', 'SHA256SUMS', 'model.safetensors', 'adapter_config.json']) {
    for (const put of [(at: string) => symlink(secret, at), fifo]) {
      const at = path.join(folder, name);
      const kept = await readFile(at).catch(() => null);
      await rm(at, { force: true });
      await put(at);
      await assert.rejects(verifyVersion(store, version), (error: Error) => !error.message.includes('a key of'));
      if (name === 'adapter_config.json') await assert.rejects(weightsFolder(store, 'weights/step_1/'), /found a/);
      await assert.rejects(store.putFile('copy', at), /found a/);
      // The list is made anew beside what is there, and takes its place.
      const summing = sumFolder(store, folder, 'weights/step_1/');
      if (name === 'SHA256SUMS') await summing;
      else await assert.rejects(summing, /found a/);
      assert.equal(await readFile(secret, 'utf8'), secretText);
      await rm(at);
      if (kept) await writeFile(at, kept);
    }
  }
  await verifyVersion(store, version);
  assert.deepEqual((await readdir(root)).sort(), ['weights']);
});

const theirUid = 54_321;
const isRoot = process.getuid?.() === 0;

test(
  'the link of another user in place of a run leads nowhere; one of this user does',
  { skip: isRoot ? false : 'only root can make files of another user' },
  async (t) => {
    const { store, root, home, secret } = await places(t);
    await writeFile(path.join(home, 'metrics.jsonl'), secretText);
    await rm(root, { recursive: true });
    await symlink(home, root);
    assert.equal(text(await store.read('secret')), secretText);
    await lchown(root, theirUid, theirUid);
    const refused = hasCode('Unsupported', 'a link of user 54321');
    await assert.rejects(store.read('secret'), refused);
    await assert.rejects(store.append('metrics.jsonl', 'more'), refused);
    await assert.rejects(store.put('k', bytes('1')), refused);
    await assert.rejects(store.removeAll(''), refused);
    await assert.rejects(store.list(''), refused);
    await assert.rejects(store.localFolder('private/'), refused);
    assert.equal(await readFile(secret, 'utf8'), secretText);
    assert.ok((await lstat(root)).isSymbolicLink());
  },
);

/** Swaps a folder for a link to ours and back as fast as it can, as another user. */
const swapper = `
const fs = require('node:fs');
const [root, target] = process.argv.slice(1);
const tried = (work) => { try { work(); } catch { } };
process.chdir(root);
process.stdout.write('ready');
for (let n = 0; ; n++) {
  tried(() => fs.renameSync('private', 'real' + n));
  tried(() => fs.symlinkSync(target, 'private'));
  tried(() => fs.unlinkSync('private'));
  tried(() => fs.renameSync('real' + n, 'private'));
}`;

test(
  'another user who swaps a folder for a link all the time gets nothing and changes nothing',
  { skip: isRoot ? false : 'only root can be another user', timeout: 60_000 },
  async (t) => {
    const { store, root, home } = await places(t);
    await mkdir(path.join(root, 'private'));
    await writeFile(path.join(root, 'private/secret'), 'theirs');
    for (const at of [path.dirname(root), root, path.join(root, 'private'), path.join(root, 'private/secret')])
      await chown(at, theirUid, theirUid);
    await chmod(path.dirname(path.dirname(root)), 0o711);
    await chmod(home, 0o700);
    const before = await contentOf(home);
    const child = spawn(process.execPath, ['-e', swapper, root, path.join(home, 'private')], {
      uid: theirUid,
      gid: theirUid,
      cwd: '/',
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    const seen = { refused: 0, done: 0 };
    try {
      for (let turn = 0; turn < 300 || (seen.refused === 0 && turn < 5_000); turn += 1) {
        for (const work of [
          () => store.read('private/secret'),
          () => store.append('private/secret', 'x'),
          () => store.put('private/k', bytes('k')),
          () => store.removeAll('private/k'),
        ]) {
          await work().then(
            (found) => {
              seen.done += 1;
              if (found instanceof Uint8Array) assert.ok(!text(found)!.includes('a key of'));
            },
            () => (seen.refused += 1),
          );
        }
      }
    } finally {
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    assert.deepEqual(await contentOf(home), before);
    assert.ok(seen.refused > 0 && seen.done > 0, JSON.stringify(seen));
  },
);
