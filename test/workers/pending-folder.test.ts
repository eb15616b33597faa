import assert from 'node:assert/strict';
import {
  existsSync,
  lchownSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { openPendingFolder, type FolderOwner } from '../../workers/pending-folder.ts';
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
