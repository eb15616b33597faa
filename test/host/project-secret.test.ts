/** The secret of a project: a file that one user can read, made once, and refused in any other state. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { holdSecret, makeSecret, ownSecret, secretFileOf } from '../../host/project-secret.ts';
import { temporaryFolder } from '../engine/models.ts';

const isRoot = process.getuid?.() === 0;
/** User id of `nobody`, who has no files here. */
const otherUid = 65_534;

test('it is made once, for its user alone, and is the same for all who ask at once', async (t) => {
  const folder = await temporaryFolder(t);
  const program = `import { makeSecret } from ${JSON.stringify(import.meta.resolve('../../host/project-secret.ts'))};
process.umask(0);
console.log(makeSecret(${JSON.stringify(folder)}));`;
  const made = await Promise.all(
    Array.from({ length: 4 }, async () => {
      const child = spawn(process.execPath, [
        '--import',
        import.meta.resolve('tsx'),
        '--input-type=module',
        '-e',
        program,
      ]);
      const [said] = await Promise.all([text(child.stdout), once(child, 'exit')]);
      return said.trim();
    }),
  );
  const secret = makeSecret(folder, {});
  assert.match(secret, /^[\w-]{43}$/);
  assert.deepEqual(new Set(made), new Set([secret]));
  const { mode } = statSync(path.join(folder, '.ratchet/secret'));
  assert.deepEqual([mode & 0o777, statSync(path.join(folder, '.ratchet')).mode & 0o777], [0o600, 0o700]);
  assert.deepEqual(readdirSync(path.join(folder, '.ratchet')), ['secret'], 'nothing is left beside it');
});

test('another user cannot read it', { skip: !isRoot && 'only root can be another user' }, async (t) => {
  const folder = await temporaryFolder(t);
  chmodSync(folder, 0o755);
  makeSecret(folder, {});
  chmodSync(path.join(folder, '.ratchet'), 0o755);
  const read = () => execFileSync('cat', [secretFileOf(folder, {})], { uid: otherUid, gid: otherUid, stdio: 'pipe' });
  assert.throws(read, /Permission denied/);
});

test('a link, a file that others may read and a file with other content are refused, and nothing is written', async (t) => {
  const folder = await temporaryFolder(t);
  const file = secretFileOf(folder, {});
  mkdirSync(path.dirname(file), { mode: 0o700 });
  const good = `${'a'.repeat(43)}\n`;
  const elsewhere = path.join(folder, 'elsewhere');
  writeFileSync(elsewhere, good, { mode: 0o600 });
  symlinkSync(elsewhere, file);
  assert.throws(() => makeSecret(folder, {}), /secret: expected the secret .* found a link\. Remove it/);
  rmSync(file);
  symlinkSync(path.join(folder, 'nowhere'), file);
  assert.throws(() => makeSecret(folder, {}), /found a link/);
  rmSync(file);
  for (const mode of [0o640, 0o604, 0o660]) {
    writeFileSync(file, good);
    chmodSync(file, mode);
    assert.throws(() => makeSecret(folder, {}), /found one that others can use \(mode 6/);
    rmSync(file);
  }
  for (const content of ['', 'short\n', `${'a'.repeat(44)}\n`, `${'a'.repeat(500)}\n`]) {
    writeFileSync(file, content, { mode: 0o600 });
    assert.throws(() => makeSecret(folder, {}), /found (?:another content|\d+ bytes)/, JSON.stringify(content));
    rmSync(file);
  }
  mkdirSync(file);
  assert.throws(() => makeSecret(folder, {}), /found a folder/);
  assert.deepEqual(readdirSync(folder).toSorted(), ['.ratchet', 'elsewhere']);
});

test('a file of another user is refused', { skip: !isRoot && 'only root can give files away' }, async (t) => {
  const folder = await temporaryFolder(t);
  const file = secretFileOf(folder, {});
  mkdirSync(path.dirname(file));
  writeFileSync(file, `${'a'.repeat(43)}\n`, { mode: 0o600 });
  chownSync(file, otherUid, otherUid);
  assert.throws(() => makeSecret(folder, {}), /found a file of user 65534/);
});

test('RATCHET_SECRET_FILE names another file, for processes that share no folder', async (t) => {
  const folder = await temporaryFolder(t);
  const file = path.join(folder, 'keys/secret');
  const secret = makeSecret(path.join(folder, 'one'), { RATCHET_SECRET_FILE: file });
  assert.equal(readFileSync(file, 'utf8'), `${secret}\n`);
  assert.equal(makeSecret(path.join(folder, 'two'), { RATCHET_SECRET_FILE: file }), secret);
});

test('a process has what it was handed, else what its folder has, also after the file is gone, and another one if it is replaced', async (t) => {
  const folder = await temporaryFolder(t);
  const environment: NodeJS.ProcessEnv = { RATCHET_SECRET: 'handed' };
  holdSecret(folder, environment);
  assert.deepEqual([ownSecret(), environment], ['handed', {}], 'no child is started with it');
  holdSecret(folder, {});
  assert.equal(ownSecret(), null, 'who only asks makes none');
  const made = makeSecret(folder, {});
  assert.equal(ownSecret(), made);
  rmSync(secretFileOf(folder, {}));
  await delay(1_100);
  assert.equal(ownSecret(), made);
  const replaced = makeSecret(folder, {});
  await delay(1_100);
  assert.equal(ownSecret(), replaced);
  assert.notEqual(replaced, made);
});
