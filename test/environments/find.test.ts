import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { environmentFinder } from '../../backends/environments/find.ts';
import { builtInEnvironmentsFolder } from '../../backends/environments/load.ts';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import type { FoundEnvironment } from '../../core/spec/find-environment.ts';

/** A project folder with these files in it. */
function project(t: TestContext, files: Readonly<Record<string, string>> = {}): string {
  const folder = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-find-')));
  t.after(() => rmSync(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
    writeFileSync(path.join(folder, name), text);
  }
  return folder;
}

function find(projectFolder: string, id: string, builtin = false): FoundEnvironment {
  return environmentFinder({ projectFolder, pythonEnvironments: [path.join(projectFolder, '.venv')] })(id, { builtin });
}

test('a built-in environment is found by its own name, in either spelling', (t) => {
  const folder = project(t);
  for (const id of ['reverse-text', 'reverse_text'])
    assert.deepEqual(find(folder, id), { ok: true, id: 'reverse-text' });
});

test('owner/name is never the built-in of that name unless it is asked for, and then that is said', (t) => {
  const folder = project(t);
  const refused = find(folder, 'primeintellect/reverse-text@0.1.4');
  assert(!refused.ok);
  assert.match(
    refused.received,
    /^"primeintellect\/reverse-text@0\.1\.4", of the Environments Hub, which is not installed/,
  );
  assert.match(refused.suggestion!, /npx ratchet env install primeintellect\/reverse-text@0\.1\.4/);
  assert.match(refused.suggestion!, /built-in "reverse-text" with --builtin/);
  assert.equal(refused.install, 'primeintellect/reverse-text@0.1.4');
  const taken = find(folder, 'primeintellect/reverse-text@0.1.4', true);
  assert(taken.ok);
  assert.equal(taken.id, 'reverse-text');
  assert.match(taken.said!, /is the built-in reverse-text, as builtin asks.*its version 0\.1\.4 has no effect/);
});

test('a built-in is not offered where there is none of that name', (t) => {
  const refused = find(project(t), 'primeintellect/gsm8k', true);
  assert(!refused.ok);
  assert(!refused.suggestion!.includes('--builtin'));
});

test('the project’s own folder comes first: what is TypeScript there is loaded, and said', (t) => {
  const folder = project(t, { 'environments/reverse_text/index.ts': 'export const loadEnvironment = () => ({});' });
  for (const id of ['reverse-text', 'someone/reverse-text']) {
    const found = find(folder, id);
    assert(found.ok);
    assert.equal(found.id, path.join(folder, 'environments/reverse_text/index.ts'));
    assert.match(found.said!, /environments\/reverse_text\/index\.ts of this project/);
  }
});

test('a Python package of the project is found, and refused until such can be run; the built-in is offered', (t) => {
  const folder = project(t, { 'environments/wiki_search/pyproject.toml': '' });
  const found = find(folder, 'wiki-search');
  assert(!found.ok);
  assert.match(found.received, /a Python package of this project, environments\/wiki_search/);
  assert.match(found.suggestion!, /still to come.*--builtin/);
  assert.deepEqual(find(folder, 'wiki-search', true).ok, true);
});

test('an installed package is an environment only if it needs verifiers: others have such names too', (t) => {
  const about = '.venv/lib/python3.12/site-packages/wordle-1.2.dist-info/METADATA';
  const unrelated = project(t, { [about]: 'Name: wordle\nRequires-Dist: requests\n' });
  assert.deepEqual(find(unrelated, 'wordle'), { ok: true, id: 'wordle' });
  const environment = project(t, { [about]: 'Name: wordle\nRequires-Dist: verifiers>=0.1\n' });
  const found = find(environment, 'someone/wordle');
  assert(!found.ok);
  assert.match(found.received, /a Python package that is installed, wordle 1\.2/);
});

test('the environments of Ratchet itself are no project’s own', () => {
  assert.deepEqual(find(path.dirname(builtInEnvironmentsFolder), 'wordle'), { ok: true, id: 'wordle' });
});

test('an id that would leave the folder is no id', (t) => {
  for (const id of ['../wordle', 'a/b/c', '..', '', 'wordle/', '-x']) assert(!find(project(t), id).ok, id);
});

const run = (id: string, more = ''): string =>
  `model = "preset:x"\n${more}[[env]]\nid = "${id}"\n[eval]\ninterval = 5\n`;

test('a run with an environment of the Hub is refused with its line, and loads with the built-in where the file or the command line asks', async (t) => {
  const projectFolder = project(t, {
    'plain.toml': run('primeintellect/reverse-text'),
    'asks.toml': run('primeintellect/reverse-text', 'builtin = true\n'),
  });
  await assert.rejects(
    loadRunConfig('plain.toml', { projectFolder }),
    /plain\.toml:3:1 {2}env\[0\]\.id[\s\S]*--builtin/,
  );
  for (const loading of [
    loadRunConfig('asks.toml', { projectFolder }),
    loadRunConfig('plain.toml', { projectFolder, overrides: { builtin: 'true' } }),
  ]) {
    const { spec, warnings } = await loading;
    assert.deepEqual(
      [...spec.environments, ...spec.eval!.environments].map(({ id, name }) => [id, name]),
      [
        ['reverse-text', 'reverse-text'],
        ['reverse-text', 'reverse-text'],
      ],
    );
    assert(warnings.some((warning) => /is the built-in reverse-text, as builtin asks/.test(warning)));
  }
});

test('a file that is only looked at loads, and tells what is not here', async (t) => {
  const projectFolder = project(t, { 'run.toml': run('primeintellect/gsm8k') });
  const { spec, missing } = await loadRunConfig('run.toml', { projectFolder, isOnlyLookedAt: true });
  assert.equal(spec.environments[0]!.id, 'primeintellect/gsm8k');
  assert.deepEqual(
    missing.map(({ file, line, path: at, install }) => [file, line, at, install]),
    [['run.toml', 3, 'env[0].id', 'primeintellect/gsm8k']],
  );
});
