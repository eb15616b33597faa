/**
 * The output of npm pack, installed with npm's defaults into an empty folder, trains there. Without a registry the test
 * is skipped with a message.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { emptyHome } from '../../setup/clean-room.mjs';
import { repositoryFolder } from './small-run.ts';

const run = promisify(execFile);

test('a packed Ratchet installs with npm’s defaults and trains in an empty folder', async (t) => {
  const room = await mkdtemp(path.join(os.tmpdir(), 'ratchet-installed-'));
  t.after(() => rm(room, { recursive: true, force: true }));
  const folder = path.join(room, 'empty');
  await mkdir(folder);
  const env: NodeJS.ProcessEnv = { ...process.env, ...emptyHome(room) };
  delete env['RATCHET_CACHE'];
  const npm = (...args: string[]) => run('npm', args, { cwd: folder, env, maxBuffer: 2 ** 26 });
  const { stdout: archive } = await run('npm', ['pack', '--silent', '--pack-destination', room], {
    cwd: repositoryFolder,
  });
  try {
    await npm('install', '--no-audit', '--no-fund', path.join(room, archive.trim()));
  } catch (error) {
    if (!/ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT/.test(String(error))) throw error;
    t.skip('no registry is reachable');
    return;
  }
  const packages = await readdir(path.join(folder, 'node_modules'));
  assert.ok(!packages.includes('onnxruntime-node'), 'no install script of it can fail');

  await npm('exec', '--', 'ratchet-rl', 'env', 'init', 'shout');
  const { stdout, stderr } = await npm(
    'exec',
    '--',
    'ratchet-rl',
    'train',
    'shout.toml',
    '--max-steps',
    '1',
    '--plain',
  );
  const said = stdout + stderr;
  assert.match(said, /downloaded the ONNX Runtime library/);
  assert.match(said, /step 1 of 1/);
  assert.match(said, /done: step 1 of 1/);
  const manifest = JSON.parse(await readFile(path.join(folder, 'package.json'), 'utf8')) as object;
  assert.deepEqual(Object.keys(manifest), ['dependencies'], 'nothing of the user’s folder is changed');
});
