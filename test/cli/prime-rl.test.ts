/** What a machine lacks for prime-rl's trainer, and what is typed for it. */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { findPrimeRlPython, installingPrimeRl } from '../../backends/prime-rl/find-python.ts';
import { checkTrainerProgram } from '../../cli/doctor/engines.ts';
import { programObstacles } from '../../cli/start/engine-lacks.ts';
import { openCommands } from './typed.ts';

const type = openCommands();

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-prime-rl-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

const named = (program: string) => ({
  trainer: {
    kind: 'prime-rl',
    program,
    ranks: 1,
    nodes: 1,
    primeRl: {},
    rankTimeoutS: 600,
    seqLen: 64,
    maxSteps: 4,
    checkpointInterval: 2,
  } as const,
});

test('a checkout is a program where its environment is made; it is not run', async (t) => {
  const checkout = folderOf(t);
  const [lack] = await programObstacles(named(checkout));
  assert.match(lack?.says ?? '', /is no program that can be started here/);
  for (const line of installingPrimeRl) assert.ok(lack?.remedies[0]?.includes(line), line);
  const python = path.join(checkout, '.venv/bin/python');
  mkdirSync(path.dirname(python), { recursive: true });
  writeFileSync(python, '#!/bin/sh\nexit 1\n');
  chmodSync(python, 0o755);
  assert.deepEqual(await programObstacles(named(checkout)), []);
  assert.equal(await findPrimeRlPython(checkout, '/'), python);
  assert.equal(await findPrimeRlPython('.venv/bin/python', checkout), python);
  assert.equal(await findPrimeRlPython('python3', checkout), 'python3');
  const [unasked] = await checkTrainerProgram(named(checkout));
  assert.deepEqual([unasked?.state, unasked?.fix], ['warn', `ask it: ${python} -c 'import torch, msgspec, prime_rl'`]);
  // An environment that was begun, and has not all of it.
  const packages = path.join(checkout, '.venv/lib/python3.12/site-packages');
  mkdirSync(path.join(packages, 'torch'), { recursive: true });
  writeFileSync(path.join(checkout, '.venv/pyvenv.cfg'), 'include-system-site-packages = false\n');
  assert.match((await programObstacles(named(checkout)))[0]?.says ?? '', /lacks msgspec, prime_rl, which prime-rl’s/);
  writeFileSync(path.join(packages, '_prime_rl.pth'), '/opt/prime-rl/src\n'); // as uv leaves one of a checkout
  assert.deepEqual(await programObstacles(named(checkout)), []);
});

test('doctor says that a program is missing', async (t) => {
  const [check] = await checkTrainerProgram(named(path.join(folderOf(t), 'nowhere')));
  assert.deepEqual([check?.state, check?.fix?.includes('uv sync')], ['bad', true]);
});

test('`engine install prime-rl` says what to type, and installs nothing', async (t) => {
  const { code, out } = await type(folderOf(t), ['engine', 'install', 'prime-rl']);
  assert.equal(code, 0);
  for (const line of [...installingPrimeRl, 'kind = "prime-rl"']) assert.ok(out.includes(line), line);
});
