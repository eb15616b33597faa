import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { openRuntimeFolder, readLock, takeLock } from '../../workers/stack/held-lock.ts';
import { holdProject, readRunningStack, StackAlreadyRunning } from '../../workers/stack/project-lock.ts';
import { eventually, startFixture, temporaryFolder } from './fixtures/processes.ts';

test('of many who ask at the same moment exactly one gets the lock', async (t) => {
  const folder = temporaryFolder(t);
  for (let round = 0; round < 5; round += 1) {
    const results = await Promise.all(Array.from({ length: 12 }, (_, i) => takeLock('same', { i }, folder)));
    const held = results.flatMap((result) => ('lock' in result ? [result.lock] : []));
    assert.equal(held.length, 1);
    held[0]?.release();
  }
  assert.deepEqual(readdirSync(folder), []);
});

test('of several processes exactly one gets the lock, and when it is killed the next one does', async (t) => {
  const folder = temporaryFolder(t);
  const start = () => startFixture(t, 'hold-lock.ts', ['same', folder]);
  const all = [start(), start(), start(), start()];
  const said = await Promise.all(all.map((one) => one.firstLine()));
  const winner = all[said.indexOf('held')];
  assert.ok(winner);
  assert.equal(said.filter((line) => line === 'held').length, 1);
  assert.deepEqual(await readLock('same', folder), { pid: winner.pid, facts: { says: 'hello' } });

  winner.kill('SIGKILL');
  await eventually('the winner ended', winner.hasEnded);
  assert.equal(await readLock('same', folder), null);
  const next = await takeLock('same', null, folder);
  assert.ok('lock' in next);
  next.lock.release();
});

test('a holder that is stopped and cannot answer still holds', async (t) => {
  const folder = temporaryFolder(t);
  const holder = startFixture(t, 'hold-lock.ts', ['same', folder]);
  assert.equal(await holder.firstLine(), 'held');
  holder.kill('SIGSTOP');
  assert.deepEqual(await takeLock('same', null, folder), { holder: { pid: holder.pid, facts: null } });
});

test('locks of different keys do not meet', async (t) => {
  const folder = temporaryFolder(t);
  for (const key of ['a', 'b']) assert.ok('lock' in (await takeLock(key, null, folder)));
});

test('a folder of sockets that is too deep, or not a folder of ours, is refused', (t) => {
  assert.throws(() => openRuntimeFolder(`/tmp/${'x'.repeat(60)}`), /RATCHET_RUNTIME_DIR may have 50 bytes/);
  const folder = temporaryFolder(t);
  symlinkSync('/', join(folder, 'l'));
  assert.throws(() => openRuntimeFolder(join(folder, 'l')), /belongs to somebody else/);
});

test('a second stack in a folder is refused with the first one’s process, and others can attach to the first', async (t) => {
  const folder = temporaryFolder(t);
  const project = join(folder, 'project');
  mkdirSync(project);
  symlinkSync(project, join(folder, 'same'));
  assert.equal(await readRunningStack(project), null);

  const hold = await holdProject(project);
  hold.tell({ state: 'ready', temporalAddress: '127.0.0.1:7', uiUrl: null, policyUrl: 'http://127.0.0.1:8' });
  const refusal = await holdProject(join(folder, 'same')).catch((error: unknown) => error);
  assert.ok(refusal instanceof StackAlreadyRunning);
  assert.match(refusal.message, new RegExp(`process ${process.pid}`));
  assert.equal(refusal.running.policyUrl, 'http://127.0.0.1:8');
  assert.equal((await readRunningStack(project))?.temporalAddress, '127.0.0.1:7');

  hold.release();
  assert.equal(await readRunningStack(project), null);
});
