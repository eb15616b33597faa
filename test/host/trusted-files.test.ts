/** Another user of the machine cannot make workers of our own Temporal server run anything of theirs. */
import assert from 'node:assert/strict';
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { openPython } from '../../backends/environments/python/sandbox.ts';
import { grantByFile, grantNamed, namedByEnvironments } from '../../load/grants/grant.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { loadEnvironment } from '../../backends/environments/load.ts';
import { givenVariables } from '../../backends/environments/variables.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { trustedRootsVariable } from '../../core/child-environment.ts';
import { importUserFunction } from '../../engine/index.ts';
import { grantedAt } from '../../host/grants.ts';
import { trustedFile, trustedInterpreter } from '../../host/trusted-files.ts';

/** A project, and beside it what a stranger laid out; this process is a worker of the project's own server. */
function stage(t: TestContext) {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-trusted-'));
  const project = path.join(folder, 'project');
  const strange = path.join(folder, 'strange');
  for (const one of [project, strange]) mkdirSync(one);
  const before = process.env[trustedRootsVariable];
  process.env[trustedRootsVariable] = project;
  t.after(() => {
    if (before === undefined) delete process.env[trustedRootsVariable];
    else process.env[trustedRootsVariable] = before;
    rmSync(folder, { recursive: true });
  });
  const write = (file: string, text: string): string => {
    writeFileSync(file, text, { mode: 0o644 });
    return file;
  };
  return { folder, project, strange, write };
}

const isRoot = process.getuid?.() === 0;
const ours = /not taken from Temporal/;

test('code that a workflow names runs only from the project, however it is named', async (t) => {
  const { project, strange, write } = stage(t);
  const ran = globalThis as { ran?: string };
  const evil = write(path.join(strange, 'evil.ts'), `globalThis.ran = 'evil'; export const loadEnvironment = () => 0;`);
  const link = path.join(project, 'link.ts');
  symlinkSync(evil, link);
  const module = write(path.join(strange, 'evil.mjs'), `globalThis.ran = 'evil'; export default () => 0;`);

  await assert.rejects(loadEnvironment(evil, {}), ours);
  await assert.rejects(loadEnvironment(link, {}), ours);
  for (const what of ['loss', 'advantage', 'trainer', 'inference'] as const) {
    await assert.rejects(importUserFunction({ path: module, sha256: null }, what), ours);
  }
  await assert.rejects(openPython({ python: evil }), ours);
  await assert.rejects(openPython({ sandbox: 'none' }), ours);
  // Variables may make an interpreter load what they name.
  const variables = write(path.join(strange, 'evil.env'), `LD_PRELOAD=${evil}\n`);
  assert.throws(() => givenVariables({ names: [], files: [variables] }), ours);
  const run = write(
    path.join(strange, 'run.toml'),
    'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n',
  );
  await assert.rejects(loadRunConfig(run, { projectFolder: project }), ours);
  const inline = { 'env.0.id': evil };
  const plain = write(
    path.join(project, 'run.toml'),
    'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n',
  );
  await assert.rejects(loadRunConfig(plain, { projectFolder: project, overrides: inline }));
  // Nor is a file of ours read into a store that somebody else chose.
  const secret = write(path.join(strange, 'private.jsonl'), '{"messages": []}\n');
  for (const [key, value] of [
    ['sft.data', secret],
    ['tokenizer.chat_template', secret],
  ] as const) {
    const overrides = { [key]: value, ...(key === 'sft.data' ? { 'sft.steps': '1' } : {}) };
    await assert.rejects(loadRunConfig(plain, { projectFolder: project, overrides }), ours, key);
  }
  assert.equal(ran.ran, undefined);

  await loadRunConfig(plain, { projectFolder: project });
  const own = write(path.join(project, 'own.mjs'), 'export default () => 7;');
  assert.equal((await importUserFunction({ path: own, sha256: null }, 'advantage'))(), 7);
});

test('an environment in Python is loaded with the arguments that this user named, and no others', async (t) => {
  const { project, write } = stage(t);
  // The bridge keeps its logs in the folder where it works.
  const here = process.cwd();
  process.chdir(project);
  t.after(() => process.chdir(here));
  const mark = path.join(project, 'ran');
  const folder = path.join(project, 'venv');
  mkdirSync(path.join(folder, 'bin'), { recursive: true });
  write(path.join(folder, 'bin', 'python'), `#!/bin/sh\necho ran > ${mark}\nexit 1\n`);
  chmodSync(path.join(folder, 'bin', 'python'), 0o755);
  const python = { module: 'toy', api: 'v1', folder, verifiers: '0.4.0', version: '1.0' } as const;
  const entry = { id: 'toy', name: 'toy', args: { n: 4 }, python };
  // In verifiers v1 the agent's program runs here, with these variables.
  const evil = { ...entry, args: { n: 4, agent: { harness: { env: { PYTHONPATH: '/tmp/evil' } } } } };
  grantNamed(project, namedByEnvironments([entry]));
  for (const other of [
    evil,
    { ...entry, agent: { harness: { id: 'bash' } } },
    { ...entry, extra: { command: 'evil' } },
    { ...entry, python: { ...python, module: 'antigravity' } },
  ]) {
    await assert.rejects(openEnvironment(other), /not taken from Temporal/);
  }
  assert.equal(existsSync(mark), false);
  // The contents of a trusted run file count as named, unless something is laid over it.
  grantByFile(namedByEnvironments([evil]), false);
  await assert.rejects(openEnvironment(evil), /not taken from Temporal/);
  grantByFile(namedByEnvironments([evil]), true);
  for (const named of [entry, evil]) {
    await assert.rejects(openEnvironment(named), (error: Error) => !/not taken from Temporal/.test(error.message));
    assert.equal(existsSync(mark), true);
  }
});

test('what others may write to is nobody’s own: the file, its folders, its owner', (t) => {
  const { project, write } = stage(t);
  const below = path.join(project, 'below');
  mkdirSync(below);
  const file = write(path.join(below, 'own.ts'), '');
  assert.equal(trustedFile(file, 'It'), file);
  const refusedWith = (place: string, mode: number, message: RegExp) => {
    chmodSync(place, mode);
    assert.throws(() => trustedFile(file, 'It'), message);
    chmodSync(place, 0o755);
  };
  refusedWith(file, 0o666, /anybody may write to .*own\.ts.*chmod o-w/);
  refusedWith(below, 0o777, /anybody may write to .*below/);
  refusedWith(project, 0o777, /anybody may write to/);
  if (isRoot) {
    chownSync(file, 0, 12_345);
    refusedWith(file, 0o664, /group 12345 may write/);
    chownSync(file, 54_321, 0);
    assert.throws(() => trustedFile(file, 'It'), /belongs to user 54321/);
  }
});

test('what this user named is outside and is taken, unless somebody else could have named it', (t) => {
  const { folder, project, strange, write } = stage(t);
  const file = write(path.join(strange, 'named.toml'), '');
  const beside = write(path.join(strange, 'beside.toml'), '');
  mkdirSync(path.join(project, '.ratchet'), { mode: 0o700 });
  write(grantedAt(project), `${file}\n`);
  assert.equal(trustedFile(file, 'It'), file);
  assert.throws(() => trustedFile(beside, 'It'), /is outside/);
  chmodSync(grantedAt(project), 0o666);
  assert.throws(() => trustedFile(file, 'It'), /is outside/);
  const roots = { [trustedRootsVariable]: [project, strange].join(path.delimiter) };
  assert.equal(trustedFile(beside, 'It', roots), beside);
  assert.equal(trustedFile(path.join(folder, 'any'), 'It', {}), path.join(folder, 'any'));
});

test('an interpreter is the system’s, or of the project', (t) => {
  const { project, strange, write } = stage(t);
  assert.equal(trustedInterpreter('python3', 'It'), 'python3');
  const theirs = write(path.join(strange, 'python3'), '#!/bin/sh\n');
  if (isRoot) chownSync(theirs, 54_321, 0);
  assert.throws(() => trustedInterpreter(theirs, 'It'), ours);
  const own = write(path.join(project, 'python3'), '#!/bin/sh\n');
  assert.equal(trustedInterpreter(own, 'It'), own);
  assert.throws(() => trustedInterpreter('/bin/sh', 'It'), ours);
  // Whatever it says when it is asked where it is would be run.
  assert.throws(() => trustedInterpreter('sh', 'It'), ours);
});
