/**
 * Both packages as they are passed on, the npm archive and the Python wheel, installed into empty folders with an empty
 * home: the first steps of the README there. Where this is root, a user does them who may write nothing that was
 * installed. Without a registry, or Python 3.11, the test is skipped with a message.
 */
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, lstatSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { emptyHome } from '../../setup/clean-room.mjs';
import { until } from '../eventually.ts';
import { repositoryFolder } from './small-run.ts';

const run = promisify(execFile);
const isRoot = process.getuid?.() === 0;
/** Who does the first steps: nobody, where this is root. */
const user = isRoot ? { uid: 65_534, gid: 65_534 } : {};

const noRegistry =
  /ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|No matching distribution|Could not find a version|ConnectionError/;

/** As they were when they were installed, with what is in them. */
type Files = readonly string[];

let room: string;
let folder: string;
let installed: string;
let venv: string;
let env: NodeJS.ProcessEnv;
let why: string | null = null;
let packed: Files;

before(async () => {
  room = await mkdtemp(path.join(os.tmpdir(), 'ratchet-installed-'));
  folder = path.join(room, 'empty');
  installed = path.join(folder, 'node_modules/ratchet-rl');
  venv = path.join(room, 'venv');
  await mkdir(folder);
  env = { ...process.env, ...emptyHome(room) };
  delete env['RATCHET_CACHE'];
  try {
    const packing = ['run', '--silent', 'pack', '--', '--silent', '--pack-destination', room];
    const { stdout: archive } = await run('npm', packing, { cwd: repositoryFolder });
    const installing = ['install', '--no-audit', '--no-fund', path.join(room, archive.trim())];
    await run('npm', installing, { cwd: folder, env, maxBuffer: 2 ** 26 });
    await run(await pythonOfUser(), ['-m', 'venv', '--without-pip', venv]);
    const pip = (...args: string[]) => run('python3', ['-m', 'pip', ...args], { cwd: room });
    const wheels = path.join(room, 'wheels');
    await pip('wheel', '--quiet', '--no-deps', '--wheel-dir', wheels, path.join(repositoryFolder, 'python/ratchet-rl'));
    await pip('--python', path.join(venv, 'bin/python'), 'install', '--quiet', path.join(wheels, (await readdir(wheels))[0]!)); // prettier-ignore
  } catch (error) {
    const said = `${String(error)}${(error as { readonly stderr?: string }).stderr ?? ''}`;
    if (!noRegistry.test(said) && !said.includes('AssertionError')) throw error;
    why = `the packages cannot be installed here: ${said.slice(-300)}`;
    return;
  }
  const { RATCHET_TEMPORAL_CLI: named } = process.env;
  if (isRoot && named !== undefined) {
    env['RATCHET_TEMPORAL_CLI'] = path.join(room, 'temporal');
    await copyFile(named, env['RATCHET_TEMPORAL_CLI']);
  }
  packed = await filesOf(installed);
  for (const place of [path.join(folder, 'node_modules'), venv]) await forNobodyToWrite(place);
  chmodSync(room, 0o755);
  if (!isRoot) return;
  env['npm_config_cache'] = path.join(room, 'home', '.npm'); // root's is not theirs to write
  for (const place of [folder, path.join(room, 'home')]) {
    execFileSync('find', [place, '-path', '*/node_modules', '-prune', '-o', '-exec', 'chown', '-h', '65534:65534', '{}', '+']); // prettier-ignore
    chownSync(place, 65_534, 65_534);
  }
});

after(async () => {
  execFileSync('chmod', ['-R', 'u+w', room]);
  await rm(room, { recursive: true, force: true });
});

/** Python 3.11 or newer as the user finds it: that of a version manager may be in somebody's home. */
async function pythonOfUser(): Promise<string> {
  const asks = 'import os, sys; assert sys.version_info >= (3, 11); print(os.path.realpath(sys.executable))';
  return (await run('python3', ['-c', asks], user)).stdout.trim();
}

function isSkipped(t: TestContext): boolean {
  if (why !== null) t.skip(why);
  return why !== null;
}

/** A command as it is typed in the folder. */
async function typed(...words: string[]): Promise<string> {
  const { stdout, stderr } = await run('npm', ['exec', '--', 'ratchet-rl', ...words], {
    cwd: folder,
    env,
    maxBuffer: 2 ** 26,
    ...user,
  });
  return stdout + stderr;
}

async function python(script: string): Promise<unknown> {
  const options = { cwd: folder, env: { ...env, TEMPORAL_ADDRESS: '' }, maxBuffer: 2 ** 26, ...user };
  const { stdout } = await run(path.join(venv, 'bin/python'), ['-c', script], options);
  return JSON.parse(stdout.trim().split('\n').at(-1)!);
}

describe('both packages, installed from files', () => {
  test('npm brings no package with an install script, and the programs come built', async (t) => {
    if (isSkipped(t)) return;
    assert.ok(!(await readdir(path.join(folder, 'node_modules'))).includes('onnxruntime-node'));
    const startedAt = performance.now();
    const options = { cwd: folder, env, ...user };
    const { stdout } = await run(process.execPath, [path.join(installed, 'cli/ratchet.mjs'), '--version'], options);
    t.diagnostic(`the first command took ${Math.round(performance.now() - startedAt)} ms`);
    const { version } = JSON.parse(await readFile(path.join(installed, 'package.json'), 'utf8')) as { version: string };
    assert.equal(stdout.trim(), version);
    assert.deepEqual(await filesOf(installed), packed, 'nothing was built');
  });

  test('the first steps of the README', async (t) => {
    if (isSkipped(t)) return;
    await typed('env', 'init', 'shout');
    assert.match(await typed('env', 'info', './shout.ts'), /shout/);
    const said = await typed('train', 'shout.toml', '--max-steps', '1', '--plain');
    assert.match(said, /downloaded the ONNX Runtime library/);
    assert.match(said, /done: step 1 of 1/);
    assert.match(await typed('train', 'shout.toml', '--max-steps', '2', '--plain'), /done: step 2 of 2/);
    assert.match(await typed('uninstall', '--json'), /"path"/);
  });

  test('the first steps from Python, at the processes of the npm package', async (t) => {
    if (isSkipped(t)) return;
    const dev = spawn('npm', ['exec', '--', 'ratchet-rl', 'dev'], { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true, ...user }); // prettier-ignore
    const isRunning = (): boolean => dev.exitCode === null && dev.signalCode === null;
    t.after(() => void (isRunning() && process.kill(-dev.pid!, 'SIGKILL')));
    let heard = '';
    for (const stream of [dev.stdout, dev.stderr]) stream.on('data', (part: Buffer) => (heard += part.toString()));
    const connects = `
from ratchet_rl import attach, read_run, start_run, RatchetError
import json
`;
    await until('the processes', async () => {
      assert.ok(isRunning(), heard);
      return (await python(`${connects}
try:
    start_run("shout.toml", name="again", overrides={"max_steps": 2})
    print(json.dumps(True))
except RatchetError as error:
    assert error.code == "ServerUnavailable", error
    print(json.dumps(False))`)) === true; // prettier-ignore
    });
    const told = await python(`${connects}
run = attach("again")
run.set(learning_rate=5e-4)
step = run.wait().step
stored = read_run("outputs/again")
worst = sorted(stored.rollouts(step=2), key=lambda rollout: rollout["reward"] or 0)[0]
print(json.dumps([step, [row["step"] for row in stored.steps()], type(worst["turns"][-1]["text"]).__name__]))`);
    assert.deepEqual(told, [2, [0, 1, 2], 'str']);
    process.kill(-dev.pid!, 'SIGINT');
    if (isRunning()) await once(dev, 'exit');
  });

  test('a program in TypeScript reads the run, and is checked against the types alone', async (t) => {
    if (isSkipped(t)) return;
    const script = `
      import { readRun } from 'ratchet-rl/client';
      const stored = await readRun('outputs/shout');
      const { value: first } = await stored.rollouts({ step: 1 }).next();
      console.log((await stored.steps()).at(-1).step, typeof first.turns[0].text);
    `;
    const reading = ['--input-type=module', '-e', script];
    assert.equal((await run(process.execPath, reading, { cwd: folder, env, ...user })).stdout.trim(), '2 string');
    await writeFile(path.join(folder, 'program.mts'), program);
    const compiler = path.join(repositoryFolder, 'node_modules/typescript/bin/tsc');
    const options = [
      '--noEmit',
      '--strict',
      '--module',
      'nodenext',
      '--target',
      'es2023',
      '--types',
      '',
      'program.mts',
    ];
    await run(process.execPath, [compiler, ...options], { cwd: folder, env });
  });

  test('nothing of theirs is in the packages, and nothing else in their folder', async (t) => {
    if (isSkipped(t)) return;
    assert.deepEqual(await filesOf(installed), packed);
    const own = ['.ratchet', 'outputs', 'program.mts', 'shout.toml', 'shout.ts'];
    const npms = ['node_modules', 'package-lock.json', 'package.json'];
    assert.deepEqual((await readdir(folder)).toSorted(), [...own, ...npms].toSorted());
    const manifest = JSON.parse(await readFile(path.join(folder, 'package.json'), 'utf8')) as object;
    assert.deepEqual(Object.keys(manifest), ['dependencies'], 'nothing of the user’s folder is changed');
  });
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

/** Files with their sizes and times. */
async function filesOf(place: string): Promise<Files> {
  const names = await readdir(place, { recursive: true });
  return names.sort().map((name) => {
    const { mtimeMs, size } = lstatSync(path.join(place, name));
    return `${name} ${size} ${mtimeMs}`;
  });
}

async function forNobodyToWrite(place: string): Promise<void> {
  await run('chmod', ['-R', 'a-w,a+rX', place]);
}
