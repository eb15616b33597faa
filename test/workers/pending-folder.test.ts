import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  lchownSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { openPendingFolder, pendingFolderHere, type FolderOwner } from '../../workers/stack/pending-folder.ts';
import { temporaryFolder } from './fixtures/processes.ts';

/** No process has it: above what a kernel gives. */
const nobody = 2 ** 30;
const isRoot = process.getuid?.() === 0;
const aDayAgo = new Date(Date.now() - 25 * 3_600_000);

function folderOf(t: TestContext) {
  const parent = temporaryFolder(t);
  const own = openPendingFolder(parent);
  const self = JSON.parse(readFileSync(join(own, 'owner.json'), 'utf8')) as FolderOwner;
  const leave = (name: string, owner: FolderOwner | null, markedAt?: Date): string => {
    const folder = join(parent, name);
    mkdirSync(folder);
    if (owner) writeFileSync(join(folder, 'owner.json'), JSON.stringify(owner));
    if (markedAt) utimesSync(owner ? join(folder, 'owner.json') : folder, markedAt, markedAt);
    return folder;
  };
  return { parent, own, self, leave };
}

test('the folder of a process in another container stays, whatever its number is here', (t) => {
  const { parent, own, self, leave } = folderOf(t);
  const elsewhere = leave(`${nobody}-aa`, { ...self, place: 'pod-a', pid: nobody });
  const unknown = leave(`${nobody}-bb`, null);
  openPendingFolder(parent);
  assert.deepEqual([elsewhere, unknown, own].map(existsSync), [true, true, true]);
});

test(
  'what a dead process of this place left is removed, also when its number was given again',
  { skip: process.platform !== 'linux' },
  (t) => {
    const { parent, self, leave } = folderOf(t);
    leave(`${nobody}-aa`, { ...self, pid: nobody });
    leave(`${process.pid}-bb`, { ...self, began: '1' });
    openPendingFolder(parent);
    assert.equal(readdirSync(parent).length, 2, 'both of this process');
  },
);

test('what nobody has marked for a day is removed, wherever its owner was', (t) => {
  const { parent, self, leave } = folderOf(t);
  leave('7-aa', { ...self, place: 'pod-a', pid: 7 }, aDayAgo);
  leave('7-bb', null, aDayAgo);
  openPendingFolder(parent);
  assert.equal(readdirSync(parent).length, 2);
});

test('a link of another user in its place is refused, and nothing behind it is touched', { skip: !isRoot }, (t) => {
  const [place, ours] = [temporaryFolder(t), temporaryFolder(t)];
  const photos = join(ours, '2024-01');
  mkdirSync(photos);
  utimesSync(photos, aDayAgo, aDayAgo);
  const parent = join(place, 'ratchet-pending');
  symlinkSync(ours, parent);
  lchownSync(parent, 54321, 54321);
  assert.throws(() => openPendingFolder(parent), /belongs to somebody else \(user 54321\); set RATCHET_PENDING/);
  assert.ok(existsSync(photos));
});

const theirs = 54_321;

/** Things that another user may have put in the place of the default folder. */
const taken: Readonly<Record<string, (usual: string, elsewhere: string) => void>> = {
  'a folder of theirs': (usual) => {
    mkdirSync(usual, { mode: 0o700 });
    chownSync(usual, theirs, theirs);
  },
  'a folder of theirs for everybody': (usual) => {
    mkdirSync(usual);
    chmodSync(usual, 0o777);
    chownSync(usual, theirs, theirs);
  },
  'a link of theirs to a folder of ours': (usual, elsewhere) => {
    symlinkSync(elsewhere, usual);
    lchownSync(usual, theirs, theirs);
  },
  'a link of theirs that leads nowhere': (usual) => {
    symlinkSync('/nowhere/at/all', usual);
    lchownSync(usual, theirs, theirs);
  },
  'a file of theirs': (usual) => {
    writeFileSync(usual, '');
    chownSync(usual, theirs, theirs);
  },
};

for (const [what, take] of Object.entries(taken)) {
  test(`${what} in the usual place: the worker has a private one, and says so once`, { skip: !isRoot }, (t) => {
    const [temporary, elsewhere] = [temporaryFolder(t), temporaryFolder(t)];
    const usual = join(temporary, `ratchet-pending-${process.getuid?.()}`);
    take(usual, elsewhere);
    // Neither a name that looks like ours nor a link to a folder of ours is taken for one.
    mkdirSync(`${usual}-aaaaaa`, { mode: 0o700 });
    chownSync(`${usual}-aaaaaa`, theirs, theirs);
    symlinkSync(elsewhere, `${usual}-bbbbbb`);
    const said: string[] = [];
    const options = { named: undefined, temporary };
    const [first, second] = [0, 1].map(() => pendingFolderHere((line) => void said.push(line), options)) as [
      string,
      string,
    ];
    const parent = join(first, '..');
    assert.equal(join(second, '..'), parent, 'the next worker finds it');
    assert.ok(parent.startsWith(`${usual}-`) && !/-(?:aaaaaa|bbbbbb)$/.test(parent), parent);
    assert.deepEqual([statSync(parent).uid, statSync(parent).mode & 0o777], [process.getuid?.(), 0o700]);
    assert.equal(said.length, 2, 'once for each worker');
    assert.match(said[0]!, /cannot be used .*New weights wait in .*Remove what is there, or set RATCHET_PENDING/);
    assert.deepEqual(readdirSync(elsewhere), []);
  });
}

test(
  'a folder that was named and is another user’s is refused: nothing else is used in its place',
  { skip: !isRoot },
  (t) => {
    const named = temporaryFolder(t);
    chownSync(named, theirs, theirs);
    assert.throws(() => pendingFolderHere(assert.fail, { named }), /belongs to somebody else/);
  },
);

test('nobody took the usual place: it is used, and nothing is said', (t) => {
  const temporary = temporaryFolder(t);
  const folder = pendingFolderHere(assert.fail, { named: undefined, temporary });
  assert.equal(join(folder, '..'), join(temporary, `ratchet-pending-${process.getuid?.()}`));
});

test('a user that the system has no name for has the same folders, and the same checks', { skip: !isRoot }, (t) => {
  const uid = 54_987;
  const passwd = readFileSync('/etc/passwd', 'utf8');
  assert.ok(!passwd.includes(`:${uid}:`));
  const temporary = temporaryFolder(t);
  chownSync(temporary, uid, uid);
  const modules = ['../../workers/stack/pending-folder.ts', '../../host/trusted-files.ts', '../../host/file-owners.ts'];
  const [pending, trusted, owners] = modules.map((name) => new URL(name, import.meta.url).href);
  const program = `
    const [{ pendingFolderHere }, { trustedFile }, { isOthers }] = await Promise.all(
      ${JSON.stringify([pending, trusted, owners])}.map((name) => import(name)));
    const { chmodSync, writeFileSync } = await import('node:fs');
    process.setgroups([]); process.setgid(${uid}); process.setuid(${uid});
    const project = ${JSON.stringify(temporary)};
    const folder = pendingFolderHere((line) => console.log('said', line), { named: undefined, temporary: project });
    writeFileSync(project + '/run.toml', '');
    chmodSync(project + '/run.toml', 0o664);
    console.log(folder, trustedFile(project + '/run.toml', 'It', { RATCHET_TRUSTED_ROOTS: project }), isOthers('/etc/passwd'));
  `;
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ['--import', 'tsx', '--input-type=module', '--eval', program],
    {
      encoding: 'utf8',
    },
  );
  assert.match(
    stdout,
    new RegExp(`^${temporary}/ratchet-pending-${uid}/\\S+ ${temporary}/run\\.toml false\n$`),
    stderr,
  );
});
