import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { arePackagesInstalled, describeFailure, ensurePackages, SetupError } from '../../setup/packages.mjs';

const lock = (version: string) =>
  JSON.stringify({
    packages: { '': {}, 'node_modules/a': { version }, 'node_modules/b': { version, optional: true } },
  });

/** A project folder, with an `npm` on PATH that does what `script` says. */
function project(t: TestContext, script: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'ratchet-packages-'));
  const path = process.env['PATH'];
  t.after(() => {
    process.env['PATH'] = path;
    rmSync(folder, { recursive: true, force: true });
  });
  mkdirSync(join(folder, 'bin'));
  writeFileSync(join(folder, 'bin', 'npm'), `#!/bin/sh\n${script}\n`);
  chmodSync(join(folder, 'bin', 'npm'), 0o755);
  process.env['PATH'] = `${join(folder, 'bin')}${delimiter}${path}`;
  writeFileSync(join(folder, 'npm-shrinkwrap.json'), lock('1.0.0'));
  return folder;
}

test('npm ci runs once, and again only after the lock file changed', async (t) => {
  const folder = project(t, 'mkdir -p node_modules; echo "$@" >> runs');
  const lines: string[] = [];
  const ensure = () => ensurePackages({ folder, log: (line) => lines.push(line) });
  const runs = () => lines.filter((line) => line.includes('installing')).length;

  await ensure();
  await ensure();
  assert.equal(runs(), 1);
  writeFileSync(join(folder, 'npm-shrinkwrap.json'), lock('1.0.1'));
  await ensure();
  assert.equal(runs(), 2);
  assert.ok(existsSync(join(folder, 'runs')));
});

test('what somebody installed by hand is kept when it is what the lock file says', (t) => {
  const folder = project(t, 'exit 1');
  assert.equal(arePackagesInstalled(folder), false);
  mkdirSync(join(folder, 'node_modules'));
  assert.equal(arePackagesInstalled(folder), false);
  const installed = { packages: { 'node_modules/a': { version: '0.9.0' } } };
  writeFileSync(join(folder, 'node_modules', '.npm-shrinkwrap.json'), JSON.stringify(installed));
  assert.equal(arePackagesInstalled(folder), false);
  installed.packages['node_modules/a'].version = '1.0.0';
  writeFileSync(join(folder, 'node_modules', '.npm-shrinkwrap.json'), JSON.stringify(installed));
  assert.equal(arePackagesInstalled(folder), true);
});

test('a failing npm ci is told with its last lines and what to do, and is tried again next time', async (t) => {
  const folder = project(t, 'mkdir -p node_modules; echo "npm error code ENOTFOUND" >&2; exit 1');
  const failure = await ensurePackages({ folder, log: () => {} }).catch((error: unknown) => error);
  assert.ok(failure instanceof SetupError);
  assert.match(failure.message, /exit code 1/);
  assert.match(failure.message, /ENOTFOUND/);
  assert.match(failure.message, /What to do: .*npm ping/);
  assert.equal(arePackagesInstalled(folder), false);
});

test('a lock file with gaps for other platforms does not keep this one from its locked versions', async (t) => {
  const gap = 'echo "npm error Missing: x-darwin@ from lock file" >&2; exit 1';
  const folder = project(t, `echo "$1" >> runs; if [ "$1" = ci ]; then ${gap}; fi; mkdir -p node_modules`);
  await ensurePackages({ folder, log: () => {} });
  assert.equal(readFileSync(join(folder, 'runs'), 'utf8'), 'ci\ninstall\n');
  assert.equal(arePackagesInstalled(folder), true);
});

test('the advice fits the failure, and npm’s warnings are left out', () => {
  const said = (text: string) => describeFailure(text, 'exit code 1', '/p').message;
  assert.match(said('npm error ENOSPC'), /make room/);
  assert.match(said('npm error EACCES'), /who owns this folder/);
  assert.doesNotMatch(said('npm warn old lockfile\nnpm error x'), /old lockfile/);
});
