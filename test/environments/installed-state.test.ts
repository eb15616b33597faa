/** A package installed while a worker lives is used by the next run or evaluation. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, test, type TestContext } from 'node:test';
import { environmentFinder } from '../../backends/environments/find.ts';
import { createEnvironments, environmentsFor } from '../../backends/environments/index.ts';
import { installedState } from '../../backends/environments/packages/installed-state.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { openVerifiers } from '../../backends/environments/verifiers/open.ts';

function folder(t: TestContext): string {
  const made = mkdtempSync(path.join(tmpdir(), 'ratchet-installed-'));
  t.after(() => rmSync(made, { recursive: true }));
  return made;
}

function write(file: string, text: string): void {
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, text);
}

/** A package in a virtual environment, as pip leaves it. */
function installed(site: string, name: string, version: string): void {
  write(path.join(site, `${name}-${version}.dist-info`, 'METADATA'), `Name: ${name}\nVersion: ${version}\n\n`);
  write(path.join(site, `${name}-${version}.dist-info`, 'RECORD'), '');
  write(path.join(site, `${name}.py`), `version = "${version}"\n`);
}

describe('the state of a virtual environment', () => {
  const python = { module: 'my_env' };

  test('changes with every package that is installed, upgraded, removed or edited', (t) => {
    const venv = folder(t);
    const site = path.join(venv, 'lib/python3.11/site-packages');
    const source = folder(t);
    write(path.join(source, 'shared.py'), '');
    const states: string[] = [];
    const look = (what: string): void => {
      const state = JSON.stringify(installedState({ folder: venv, ...python }));
      assert.equal(
        state,
        JSON.stringify(installedState({ folder: venv, ...python })),
        `${what}: the same while nothing changes`,
      );
      assert(!states.includes(state), `${what} is noticed`);
      states.push(state);
    };
    look('nothing');
    installed(site, 'my_env', '0.1.0');
    look('a package');
    write(path.join(site, 'my_env.py'), 'changed = True\n');
    look('an edited module');
    utimesSync(path.join(site, 'my_env.py'), 1, 1);
    look('a module with another time');
    installed(site, 'helper', '1.0');
    look('a dependency');
    rmSync(path.join(site, 'helper-1.0.dist-info'), { recursive: true });
    installed(site, 'helper', '1.1');
    look('an upgraded dependency');
    write(path.join(site, '__editable__.shared.pth'), `${source}\n`);
    look('a path');
    installed(site, 'shared', '0.1');
    const url = { url: pathToFileURL(source).href, dir_info: { editable: true } };
    write(path.join(site, 'shared-0.1.dist-info', 'direct_url.json'), JSON.stringify(url));
    look('an editable package');
    write(path.join(source, 'shared.py'), 'changed = True\n');
    look('an edited file of an editable package');
    rmSync(path.join(site, '__editable__.shared.pth'));
    look('a path that is gone');
    write(path.join(site, 'my_env/__init__.py'), '');
    look('a module that became a folder');
  });

  test('is shared by its modules, but for the files of each', (t) => {
    const venv = folder(t);
    const site = path.join(venv, 'lib/python3.11/site-packages');
    installed(site, 'my_env', '0.1.0');
    installed(site, 'other', '0.1.0');
    const [mine, other] = ['my_env', 'other'].map((module) => installedState({ folder: venv, module }));
    assert.equal(mine!.shared, other!.shared);
    assert.notEqual(mine!.own, other!.own);
    assert.deepEqual(installedState({ folder: '/nowhere', ...python }), installedState({ folder: '/elsewhere', ...python })); // prettier-ignore
  });
});

describe('environments of a process', () => {
  const entry = { id: 'my-env', args: {} };

  test('are loaded anew for a run that begins after something was installed; one that is under way keeps its own', async () => {
    let state = 'a';
    const loads: string[] = [];
    const environments = createEnvironments(
      async (_, of) => {
        loads.push(of);
        return { name: of } as Environment;
      },
      () => state,
    );
    const first = environmentsFor(environments, 'run 1');
    const before = await first.open(entry);
    state = 'b';
    assert.equal(await first.open(entry), before);
    assert.equal(await environmentsFor(environments, 'run 1').open(entry), before);
    const second = await environmentsFor(environments, 'run 2').open(entry);
    assert.deepEqual([before.name, second.name, loads], ['a', 'b', ['a', 'b']]);
    assert.equal(await environments.open(entry), second);
    assert.equal((await first.reopen(entry, before)).name, 'a');
    assert.notEqual(await first.open(entry), before);
    state = 'a';
    assert.equal(await environmentsFor(environments, 'run 3').open(entry), await first.open(entry));
  });

  test('that do not know of users are the same for all', async () => {
    const open = async () => ({ name: 'x' }) as Environment;
    const fake = { open, reopen: open };
    assert.equal(environmentsFor(fake, 'run 1'), fake);
  });
});

describe('what a run file’s id stands for', () => {
  const manifest = (venv: string, version: string) =>
    write(
      path.join(venv, 'ratchet.json'),
      JSON.stringify({
        schemaVersion: 1,
        api: 'v0',
        verifiers: '0.3.1',
        python: '3.11.7',
        base: null,
        packages: [{ name: 'my-env', module: 'my_env', version, from: { kind: 'pypi', requirement: 'my-env' } }],
      }),
    );

  test('says the version that is there, also where pip changed it by itself', (t) => {
    const project = folder(t);
    const venv = path.join(project, '.ratchet/python/v0-0.3.1');
    manifest(venv, '0.1.0');
    installed(path.join(venv, 'lib/python3.11/site-packages'), 'my_env', '0.2.0');
    const found = environmentFinder({ projectFolder: project })('my-env', { builtin: false });
    assert(found.ok);
    assert.equal(found.python?.version, '0.2.0');
    assert.match(found.said ?? '', /my-env 0\.2\.0/);
  });

  test('is refused where pip took it out, with what installs it', (t) => {
    const project = folder(t);
    const venv = path.join(project, '.ratchet/python/v0-0.3.1');
    manifest(venv, '0.1.0');
    mkdirSync(path.join(venv, 'lib/python3.11/site-packages'), { recursive: true });
    const found = environmentFinder({ projectFolder: project })('my-env', { builtin: false });
    assert(!found.ok);
    assert.match(found.received, /was taken out of its virtual environment/);
    assert.match(found.suggestion ?? '', /npx ratchet-rl env install pypi:my-env/);
  });
});

test('a package that was exchanged in the middle of its run is refused with both versions', async (t) => {
  const venv = folder(t);
  installed(path.join(venv, 'lib/python3.11/site-packages'), 'my_env', '0.2.0');
  mkdirSync(path.join(venv, 'bin'));
  const python = { module: 'my_env', api: 'v0', folder: venv, verifiers: '0.3.1', version: '0.1.0' } as const;
  await assert.rejects(
    openVerifiers({ id: 'my-env', args: {}, python, given: {} }),
    /my_env was exchanged in the middle of its run: expected version 0\.1\.0, and .* has 0\.2\.0 now/,
  );
});
