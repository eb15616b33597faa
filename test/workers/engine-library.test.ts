import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { isRuntimeHere, librariesOfPlatform, libraryName } from '../../engine/onnx/runtime-package.ts';
import { fetchEngineLibrary } from '../../workers/install/engine-library.ts';

const version = '9.9.9';
const library = path.join(librariesOfPlatform, libraryName(version));

/** A folder, with an `npm` on PATH whose `pack` leaves an archive of such a package. */
function machine(t: TestContext, { fails = '' } = {}) {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-engine-library-'));
  const usual = process.env['PATH'];
  t.after(() => {
    process.env['PATH'] = usual;
    rmSync(folder, { recursive: true, force: true });
  });
  const made = path.join(folder, 'package');
  mkdirSync(path.join(made, librariesOfPlatform), { recursive: true });
  writeFileSync(path.join(made, library), 'the library');
  writeFileSync(
    path.join(made, 'package.json'),
    JSON.stringify({ version, scripts: { postinstall: 'touch /tmp/ran' } }),
  );
  writeFileSync(path.join(made, 'other.js'), 'not needed');
  const archive = path.join(folder, 'archive.tgz');
  execFileSync('tar', ['-czf', archive, '-C', folder, 'package']);
  const programs = path.join(folder, 'programs');
  mkdirSync(programs);
  const npm = path.join(programs, 'npm');
  const copies = `printf '%s\\n' "$@" > ${folder}/asked; cp ${archive} "$4/onnxruntime-node-${version}.tgz"`;
  writeFileSync(npm, `#!/bin/sh\n${fails === '' ? copies : `echo "${fails}" >&2; exit 1`}\n`);
  chmodSync(npm, 0o755);
  process.env['PATH'] = `${programs}:${usual}`;
  const integrity = `sha512-${createHash('sha512').update(readFileSync(archive)).digest('base64')}`;
  const cache = path.join(folder, 'cache');
  const kept = path.join(cache, `onnxruntime-node-${version}`);
  return { folder, cache, kept, wanted: { name: 'onnxruntime-node', version, integrity } };
}

const quiet = (): void => undefined;

test('a clone has the engine’s library among its packages', () => assert.equal(isRuntimeHere(), true));

test('npm fetches the archive without its scripts; the library of this platform and the manifest are kept', async (t) => {
  const { folder, cache, kept, wanted } = machine(t);
  const said: string[] = [];
  await fetchEngineLibrary({ folder: kept, wanted }, (line) => said.push(line));
  assert.equal(readFileSync(path.join(kept, library), 'utf8'), 'the library');
  assert.deepEqual(readdirSync(kept).sort(), ['bin', 'package.json']);
  assert.deepEqual(readdirSync(cache), [path.basename(kept)], 'nothing else is left');
  const asked = readFileSync(path.join(folder, 'asked'), 'utf8').split('\n');
  assert.deepEqual(asked.slice(0, 2), ['pack', `onnxruntime-node@${version}`]);
  assert.ok(asked.includes('--ignore-scripts'));
  assert.match(said[0] ?? '', /^downloading the ONNX Runtime library \(onnxruntime-node 9\.9\.9, about 110 MB, once\)/);
});

test('another file than the lock file’s is refused, and nothing of it is kept', async (t) => {
  const { cache, kept, wanted } = machine(t);
  const other = { ...wanted, integrity: `sha512-${Buffer.alloc(64).toString('base64')}` };
  await assert.rejects(fetchEngineLibrary({ folder: kept, wanted: other }, quiet), {
    code: 'ServerUnavailable',
    message: /expected the digest sha512-AAAA.* of the lock file, got sha512-/,
  });
  assert.deepEqual(readdirSync(cache), []);
});

test('where npm cannot fetch it, its own words are told and what to type', async (t) => {
  const { cache, kept, wanted } = machine(t, { fails: 'npm error code E404' });
  await assert.rejects(fetchEngineLibrary({ folder: kept, wanted }, quiet), {
    code: 'ServerUnavailable',
    message: /onnxruntime-node@9\.9\.9 .*E404.*npm install --ignore-scripts onnxruntime-node@9\.9\.9/s,
  });
  assert.deepEqual(readdirSync(cache), []);
});
