import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { accept } from '../config/read-run.ts';
import { environmentFinder } from '../../backends/environments/find.ts';
import { builtInEnvironmentsFolder } from '../../backends/environments/load.ts';
import type { InstalledPackage } from '../../backends/environments/packages/installed.ts';
import { apisOf, folderDigest, moduleCode } from '../../backends/environments/packages/package.ts';
import { verifiersRequirement } from '../../backends/environments/packages/requirement.ts';
import { examineRunFile } from '../../load/checks/examine-run-file.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { describeRunFile } from '../../cli/describe/run-file.ts';
import type { FoundEnvironment } from '../../config/find-environment.ts';

/** A project folder with these files in it. */
function project(t: TestContext, files: Readonly<Record<string, string>> = {}): string {
  const folder = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-find-')));
  t.after(() => rmSync(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) write(folder, name, text);
  return folder;
}

function write(folder: string, name: string, text: string): void {
  mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
  writeFileSync(path.join(folder, name), text);
}

function find(projectFolder: string, id: string, builtin = false): FoundEnvironment {
  return environmentFinder({ projectFolder, pythonEnvironments: [path.join(projectFolder, '.venv')] })(id, { builtin });
}

test('a built-in environment is found by its own name, in either spelling', (t) => {
  const folder = project(t);
  for (const id of ['reverse-text', 'reverse_text'])
    assert.deepEqual(find(folder, id), { ok: true, id: 'reverse-text' });
});

test('a bare name in a file of another system is a package there: which one plays is said', (t) => {
  const folder = project(t);
  const builtIn = environmentFinder({ projectFolder: folder })('reverse_text', { builtin: false, system: 'prime-rl' });
  assert(builtIn.ok);
  assert.equal(builtIn.id, 'reverse-text');
  assert.match(
    builtIn.said!,
    /is the built-in reverse-text, not the package reverse_text that prime-rl imports; .*env install OWNER\/reverse-text/,
  );
  const loaded = accept(
    '[orchestrator]\ngroup_size = 2\n[[orchestrator.train.source]]\nenv = { taskset = { id = "reverse-text" } }\n',
    {
      findEnvironment: environmentFinder({ projectFolder: folder }),
    },
  );
  assert(loaded.warnings.some((line) => line.includes('is the built-in reverse-text, not the package')));
});

test('a package in a folder beside the run file is found to be installed, unless its name is taken', (t) => {
  const folder = project(t, { 'runs/my_words/pyproject.toml': '[project]\nname = "my-words"\n' });
  const findFrom = (fileFolder: string, id: string) =>
    environmentFinder({ projectFolder: folder, pythonEnvironments: [], fileFolder })(id, { builtin: false });
  const beside = findFrom(path.join(folder, 'runs'), 'my-words');
  assert(!beside.ok);
  assert.equal(beside.install, './runs/my_words');
  assert.match(beside.received, /a Python package beside the run file, \.\/runs\/my_words, which is not installed/);
  assert.match(beside.suggestion!, /npx ratchet-rl env install \.\/runs\/my_words installs it, and so does --yes/);
  const elsewhere = findFrom(folder, 'my-words');
  assert(!elsewhere.ok);
  assert.equal(elsewhere.install, undefined);
  write(folder, 'runs/reverse_text/pyproject.toml', '');
  assert.deepEqual(findFrom(path.join(folder, 'runs'), 'reverse-text'), { ok: true, id: 'reverse-text' });
});

test('owner/name is never the built-in of that name unless it is asked for, and then that is said', (t) => {
  const folder = project(t);
  const refused = find(folder, 'primeintellect/reverse-text@0.1.4');
  assert(!refused.ok);
  assert.match(
    refused.received,
    /^"primeintellect\/reverse-text@0\.1\.4", of the Environments Hub, which is not installed/,
  );
  assert.match(refused.suggestion!, /npx ratchet-rl env install primeintellect\/reverse-text@0\.1\.4/);
  assert.match(refused.suggestion!, /built-in "reverse-text" with --builtin/);
  assert.equal(refused.install, 'primeintellect/reverse-text@0.1.4');
  const taken = find(folder, 'primeintellect/reverse-text@0.1.4', true);
  assert(taken.ok);
  assert.equal(taken.id, 'reverse-text');
  assert.match(taken.said!, /is the built-in reverse-text, as builtin asks.*its version 0\.1\.4 has no effect/);
});

test('where a built-in is asked for and there is none, those that there are are named', (t) => {
  const refused = find(project(t), 'primeintellect/gsm8k', true);
  assert(!refused.ok);
  assert.match(
    refused.suggestion!,
    /env install primeintellect\/gsm8k .*no built-in is called gsm8k.*--env\.id word-problems/,
  );
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

const run = (id: string, more = ''): string =>
  `model = "preset:x"\n${more}[[env]]\nid = "${id}"\n[eval]\ninterval = 5\n`;

const pyproject = (name: string): string => `[project]\nname = "${name}"\nversion = "0.1.0"\n`;

/** Manifest that `ratchet env install` writes for one package. */
function manifest(one: Partial<InstalledPackage> & { name: string }, base: string | null = null): string {
  const module = one.name.replaceAll('-', '_');
  const from = { kind: 'folder', path: '' } as const;
  const packages = [{ module, version: '0.1.0', from, ...one }];
  return JSON.stringify({ schemaVersion: 1, api: 'v0', verifiers: '0.3.1', python: '3.12.1', base, packages });
}

test('a Python package of the project that is not installed is refused with the command; the built-in is offered', (t) => {
  const folder = project(t, { 'environments/wiki_search/pyproject.toml': pyproject('wiki-search') });
  const found = find(folder, 'wiki-search');
  assert(!found.ok);
  assert.match(found.received, /a Python package of this project, environments\/wiki_search, which is not installed/);
  assert.match(found.suggestion!, /^npx ratchet-rl env install wiki-search installs it; or .*--builtin/);
  assert.equal(found.install, 'wiki-search');
  assert.deepEqual(find(folder, 'wiki-search', true).ok, true);
});

test('an installed package of the project is what its id stands for, with all that loading it takes', (t) => {
  const folder = project(t, { 'environments/my_env/pyproject.toml': pyproject('my-env') });
  const source = path.join(folder, 'environments/my_env');
  const installed = { name: 'my-env', from: { kind: 'folder', path: source }, sha256: folderDigest(source) } as const;
  const place = path.join(folder, '.ratchet/python/v0-0.3.1');
  write(folder, '.ratchet/python/v0-0.3.1/ratchet.json', manifest(installed));
  for (const id of ['my-env', 'my_env']) {
    const found = find(folder, id);
    assert(found.ok, id);
    assert.equal(found.id, 'my-env');
    assert.deepEqual(found.python, {
      module: 'my_env',
      api: 'v0',
      folder: place,
      verifiers: '0.3.1',
      version: '0.1.0',
      source,
      sha256: folderDigest(source),
    });
    assert.match(
      found.said!,
      /the Python package my-env 0\.1\.0 \(verifiers 0\.3\.1, api v0\), from \.\/environments\/my_env$/,
    );
  }
  write(folder, 'environments/my_env/my_env.py', 'x = 1\n');
  const changed = find(folder, 'my-env');
  assert(changed.ok && changed.python?.sha256 !== installed.sha256, 'the files as they are now');
});

test('a package whose pyproject.toml has changed says so, and one whose verifiers is gone is to be installed again', (t) => {
  const folder = project(t, { 'environments/my_env/pyproject.toml': pyproject('my-env') });
  const from = { kind: 'folder', path: path.join(folder, 'environments/my_env') } as const;
  const one = { name: 'my-env', from, sha256: 'before', pyproject: 'before' };
  write(folder, '.ratchet/python/v0-0.3.1/ratchet.json', manifest(one));
  const found = find(folder, 'my-env');
  assert(found.ok);
  assert.match(found.said!, /its pyproject\.toml has changed since: npx ratchet-rl env install my-env/);
  write(folder, '.ratchet/python/v0-0.3.1/ratchet.json', manifest(one, path.join(folder, 'gone/bin/python')));
  const refused = find(folder, 'my-env');
  assert(!refused.ok);
  assert.match(refused.received, /its verifiers 0\.3\.1, in .*gone\/bin\/python, is gone/);
  assert.equal(refused.install, 'my-env');
});

test('a package of the Hub is found by its id, and never in place of one of another owner or version', (t) => {
  const folder = project(t, { 'hub/pyproject.toml': pyproject('gsm8k') });
  const from = { kind: 'hub', id: 'primeintellect/gsm8k', path: path.join(folder, 'hub') } as const;
  write(folder, '.ratchet/python/v0-0.3.1/ratchet.json', manifest({ name: 'gsm8k', from, version: '0.1.4' }));
  for (const id of ['gsm8k', 'primeintellect/gsm8k', 'primeintellect/gsm8k@0.1.4', 'primeintellect/gsm8k@latest'])
    assert(find(folder, id).ok, id);
  for (const [id, why] of [
    ['someone/gsm8k', /installed is gsm8k of primeintellect/],
    ['primeintellect/gsm8k@0.1.5', /installed is version 0\.1\.4/],
  ] as const) {
    const refused = find(folder, id);
    assert(!refused.ok);
    assert.match(refused.received, why);
    assert.equal(refused.install, id);
  }
});

test('a package in a virtual environment of one’s own is an environment only if it needs verifiers: others have such names too', (t) => {
  const site = '.venv/lib/python3.12/site-packages';
  const about = `${site}/wordle-1.2.dist-info/METADATA`;
  const unrelated = project(t, { [about]: 'Name: wordle\nRequires-Dist: requests\n' });
  assert.deepEqual(find(unrelated, 'wordle'), { ok: true, id: 'wordle' });
  const old = project(t, {
    [about]: 'Name: wordle\nRequires-Dist: verifiers>=0.1\n',
    [`${site}/verifiers-0.1.14.dist-info/METADATA`]: 'Name: verifiers\n',
  });
  const refused = find(old, 'someone/wordle');
  assert(!refused.ok);
  assert.match(refused.received, /wordle 1\.2, with verifiers 0\.1\.14; Ratchet speaks with 0\.3\.1 and newer/);
  const environment = project(t, {
    [about]: 'Name: wordle\nRequires-Dist: verifiers<0.4,>=0.3\n',
    [`${site}/verifiers-0.3.1.dist-info/METADATA`]: 'Name: verifiers\n',
  });
  const found = find(environment, 'wordle');
  assert(found.ok);
  const { module, api, folder, verifiers, version } = found.python!;
  assert.deepEqual([module, api, folder, verifiers, version], ['wordle', 'v0', path.join(environment, '.venv'), '0.3.1', '1.2']); // prettier-ignore
  assert.match(found.said!, /; to take the built-in "wordle" with --builtin/);
});

test('which API a package is written for is what its requirement lets through, and else what its code shows', () => {
  const v0 = 'import verifiers as vf\n\ndef load_environment(n: int = 3):\n    ...\n';
  const v1 = 'import verifiers.v1 as vf\n__all__ = ["Toy"]\nclass Toy(vf.Taskset): ...\n';
  for (const [dependency, code, apis] of [
    ['verifiers>=0.3.1,<0.4', null, ['v0']],
    ['verifiers[rl] ~=0.3.0', null, ['v0']],
    ['verifiers >= 0.4', null, ['v1']],
    ['verifiers==0.4.*; python_version >= "3.11"', null, ['v1']],
    ['verifiers>=0.1.9.post2', null, ['v0', 'v1']],
    ['verifiers>=0.1.5', v0, ['v0']],
    ['verifiers', v1, ['v1']],
    ['verifiers', v0 + v1, ['v0', 'v1']],
    ['verifiers @ git+https://example.org/x', v0, ['v0']],
    ['verifiers (<0.2,>=0.1)', v0, []],
    ['verifiers!=0.3.1,<0.4', null, []],
  ] as const) {
    assert.deepEqual(apisOf(verifiersRequirement(['requests', dependency])!, code), apis, dependency);
  }
  assert.equal(verifiersRequirement(['verifiers-rl>=0.1', 'my-verifiers']), null);
});

test('the API of a package in verifiers’ own layout is found out where its first file only passes a class on', (t) => {
  const folder = project(t, {
    'plain/__init__.py': 'from plain.taskset import (\n    PlainTaskset,\n)\n\n__all__ = ["PlainTaskset"]\n',
    'plain/taskset.py': 'import verifiers.v1 as vf\n\nclass PlainTaskset(vf.Taskset): ...\n',
    'src/dotted/__init__.py': 'from .environment import make\n',
    'src/dotted/environment/__init__.py': 'def load_environment(): ...\n',
  });
  assert.deepEqual(apisOf('', moduleCode(folder, 'plain')), ['v1']);
  assert.deepEqual(apisOf('', moduleCode(folder, 'dotted')), ['v0']);
  assert.equal(moduleCode(folder, 'missing'), null);
});

test('a run file’s Python package goes into the spec, for training and evaluation, and is read without importing it', async (t) => {
  const source = 'environments/my_env';
  const projectFolder = project(t, {
    [`${source}/pyproject.toml`]: pyproject('my-env'),
    [`${source}/my_env.py`]: 'raise SystemExit("imported")',
    'run.toml': run('my-env', 'sampling.max_tokens = 8\n').replace('preset:x', 'preset:chars-0.4m'),
  });
  const missing = await loadRunConfig('run.toml', { projectFolder, isOnlyLookedAt: true });
  assert.deepEqual(missing.missing.map(({ install }) => install), ['my-env']); // prettier-ignore
  const from = { kind: 'folder', path: path.join(projectFolder, source) } as const;
  write(projectFolder, '.ratchet/python/v0-0.3.1/ratchet.json', manifest({ name: 'my-env', from }));
  const report = await examineRunFile('run.toml', { projectFolder });
  const { spec } = report.loaded!;
  for (const entry of [...spec.environments, ...spec.eval!.environments]) {
    assert.equal(entry.id, 'my-env');
    assert.equal(entry.python?.source, from.path);
  }
  assert.match(describeRunFile(report).join('\n'), /environment {3}my-env, a Python package, version 0\.1\.0 \(verifiers 0\.3\.1, api v0\)/); // prettier-ignore
});

test('the environments of Ratchet itself are no project’s own', () => {
  assert.deepEqual(find(path.dirname(builtInEnvironmentsFolder), 'wordle'), { ok: true, id: 'wordle' });
});

test('an id that would leave the folder is no id', (t) => {
  for (const id of ['../wordle', 'a/b/c', '..', '', 'wordle/', '-x']) assert(!find(project(t), id).ok, id);
});

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
