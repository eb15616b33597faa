/**
 * The output of npm pack, installed with npm's defaults into an empty folder, trains there. Without a registry the test
 * is skipped with a message.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
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
  const own = path.join(folder, 'node_modules/ratchet-rl');
  const before = await filesOf(own);

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
  assert.deepEqual(await filesOf(own), before, 'nothing of the user’s is in the package');

  const script = `
    import { readRun } from 'ratchet-rl/client';
    const stored = await readRun('outputs/shout');
    const { value: first } = await stored.rollouts({ step: 1 }).next();
    console.log((await stored.steps()).at(-1).step, typeof first.turns[0].text);
  `;
  const read = await run(process.execPath, ['--input-type=module', '-e', script], { cwd: folder, env });
  assert.equal(read.stdout.trim(), '1 string');
  await writeFile(path.join(folder, 'program.mts'), program);
  const compiler = path.join(repositoryFolder, 'node_modules/typescript/bin/tsc');
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2023', '--types', '', 'program.mts'];
  await run(process.execPath, [compiler, ...options], { cwd: folder, env });

  const manifest = JSON.parse(await readFile(path.join(folder, 'package.json'), 'utf8')) as object;
  assert.deepEqual(Object.keys(manifest), ['dependencies'], 'nothing of the user’s folder is changed');
});

/** A user's program, checked against the types in a project that has nothing else. */
const program = `
import { attach, startRun, type Rollout, type Run } from 'ratchet-rl/client';
const run: Run = await startRun('shout.toml', { overrides: { max_steps: 3 } });
const worst: Rollout[] = [];
for await (const rollout of run.rollouts({ step: 3 })) if ((rollout.reward ?? 0) < 0.1) worst.push(rollout);
const other = await attach(run.name);
// @ts-expect-error: a setting is a number
await other.set({ learning_rate: 'high' });
`;

/** Files of the package, without those of other packages and what is built beside them. */
async function filesOf(folder: string): Promise<string[]> {
  const names = await readdir(folder, { recursive: true });
  return names.filter((name) => !name.startsWith('node_modules')).sort();
}
