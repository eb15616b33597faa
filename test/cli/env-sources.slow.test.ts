/** `ratchet env install` of wheels and of an index that is a folder of wheels: extras, reasons of the resolver, what depends on verifiers. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { managedEnvironments } from '../../backends/environments/packages/installed.ts';
import { environmentFinder } from '../../backends/environments/find.ts';
import { installEnvironment } from '../../cli/python-environments/install.ts';
import { ensureVerifiers } from '../../workers/install/environment-python.ts';

let python = '';
/** false, or why Python environments cannot be tried here. */
const skip = await ensureVerifiers('v0', { log: (line) => void process.stderr.write(`${line}\n`) }).then(
  (found) => {
    python = found;
    return false as const;
  },
  (error: Error) => `verifiers cannot be installed here: ${error.message}`,
);

const project = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-env-sources-')));
const index = path.join(project, 'index');
const variables = { PIP_NO_INDEX: '1', PIP_FIND_LINKS: index, UV_NO_INDEX: '1', UV_FIND_LINKS: index };
const kept = Object.fromEntries(Object.keys(variables).map((name) => [name, process.env[name]]));

interface Wheel {
  readonly requires?: readonly string[];
  readonly extras?: readonly string[];
  readonly python?: string;
  readonly files?: Readonly<Record<string, string>>;
  readonly folder?: string;
}

const plays = 'def load_environment(): ...\n';

/** A wheel of pure Python in the index; Python writes the archive. */
function wheel(
  name: string,
  version: string,
  { requires = [], extras = [], python: needs, files, folder = index }: Wheel = {},
): string {
  // prettier-ignore
  const dist = name.replaceAll('-', '_');
  const metadata = [
    'Metadata-Version: 2.1',
    `Name: ${name}`,
    `Version: ${version}`,
    ...(needs === undefined ? [] : [`Requires-Python: ${needs}`]),
    ...extras.map((extra) => `Provides-Extra: ${extra}`),
    ...requires.map((one) => `Requires-Dist: ${one}`),
  ].join('\n');
  const about = `${dist}-${version}.dist-info`;
  const all = {
    ...(files ?? { [`${dist}.py`]: plays }),
    [`${about}/METADATA`]: `${metadata}\n\n`,
    [`${about}/WHEEL`]: 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    [`${about}/RECORD`]: '',
  };
  mkdirSync(folder, { recursive: true });
  const file = path.join(folder, `${dist}-${version}-py3-none-any.whl`);
  const program =
    'import json,sys,zipfile\nz=zipfile.ZipFile(sys.argv[1],"w")\n[z.writestr(*one) for one in json.load(sys.stdin).items()]\nz.close()';
  execFileSync(python, ['-c', program, file], { input: JSON.stringify(all) });
  return file;
}

const install = (written: string, log: (line: string) => void = () => undefined) =>
  installEnvironment(written, { projectFolder: project, log });

describe('a package that is built', { skip, concurrency: false }, () => {
  before(() => {
    Object.assign(process.env, variables);
    wheel('behind-extra', '0.1.1', { requires: ['verifiers>=0.1.8; extra == "env"', 'helper-of-env; extra == "env"'], extras: ['env', 'dev'] }); // prettier-ignore
    wheel('behind-extra', '0.1.2', { requires: ['verifiers>=0.4; extra == "env"'], extras: ['env'] });
    wheel('helper-of-env', '1.0');
    wheel('too-new', '0.1.0', { requires: ['verifiers'], python: '>=3.99' });
    wheel('newer-helper', '1.0', { python: '>=3.12,<3.14' });
    wheel('wants-newer', '0.1', { requires: ['verifiers>=0.3.1,<0.4', 'newer-helper'] });
    wheel('through-another', '0.1', { requires: ['Core-Of.Envs'] });
    wheel('core-of-envs', '2.0', { requires: ['verifiers>=0.3.1,<0.4'] });
    // Dependencies of the real package do not matter here: the environment below has them already.
    wheel('verifiers', '0.3.1', { folder: index, files: { 'unused.py': '' } });
    wheel('unrelated', '1.0', { requires: ['helper-of-env'] });
    wheel('on-windows', '1.0', { requires: ['verifiers; sys_platform == "win32"'] });
    wheel('Capital_Env', '0.1', { requires: ['Verifiers>=0.3.1,<0.4'], files: { 'capital_env.py': plays } });
    wheel('at-odds', '1.0', { requires: ['verifiers>=0.3.1,<0.4', 'helper-of-env==2.0'] });
  });
  after(() => {
    for (const [name, value] of Object.entries(kept)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    rmSync(project, { recursive: true, force: true });
  });

  test('and needs verifiers with an extra alone is installed with it, and refused without it by what to type', async () => {
    await assert.rejects(install('pypi:behind-extra==0.1.1'), /needs verifiers only with its extra "env": npx ratchet-rl env install 'pypi:behind-extra\[env\]==0\.1\.1'/); // prettier-ignore
    const said: string[] = [];
    const installed = await install('pypi:behind-extra[env]==0.1.1', (line) => said.push(line));
    assert(installed.done);
    assert.match(said.join('\n'), /behind-extra 0\.1\.1 needs verifiers>=0\.1\.8: api v0/);
    assert.deepEqual([installed.package.version, installed.package.extras], ['0.1.1', ['env']]);
    const [managed] = managedEnvironments(project);
    const has = (name: string) => existsSync(path.join(managed!.folder, 'lib', `python${managed!.manifest.python.split('.').slice(0, 2).join('.')}`, 'site-packages', name)); // prettier-ignore
    assert(has('helper_of_env.py'), 'what the extra asks for is there');
    const found = environmentFinder({ projectFolder: project })('behind-extra@0.9', { builtin: false });
    assert(!found.ok);
    assert.equal(found.install, 'behind-extra@0.9');
  });

  test('with an extra that it does not have is refused with those that it has', async () => {
    await assert.rejects(
      install('pypi:behind-extra[evn]==0.1.1'),
      /has no extra "evn"; it has env, dev\. Nothing was installed/,
    );
  });

  test('for a newer Python is refused with the reason first, and with the versions that will do', async () => {
    await assert.rejects(install('pypi:too-new'), (error: Error) => {
      assert.match(error.message, /^too-new cannot be installed: /);
      assert.match(
        error.message,
        /asks for Python >=3\.99, and the Python here is 3\.\d+\.\d+ [^]*no Python runs both/,
      );
      assert.doesNotMatch(error.message, /source distribution/);
      return true;
    });
  });

  test('one of whose dependencies is for a newer Python names it, and the Python to take', async (t) => {
    const [managed] = managedEnvironments(project);
    if (!managed!.manifest.python.startsWith('3.11')) return t.skip('its Python is new enough');
    await assert.rejects(install('pypi:wants-newer'), (error: Error) => {
      assert.match(error.message, /^wants-newer cannot be installed: [^]*newer-helper/);
      assert.match(error.message, /asks for Python [<>=.,\d]*>=3\.12[<>=.,\d]*, and [^]*Python 3\.12 or 3\.13 will do[^]*RATCHET_PYTHON=python3\.13/); // prettier-ignore
      return true;
    });
  });

  test('that does not go together with itself is refused with the account of the resolver, whole', async () => {
    await assert.rejects(install('pypi:at-odds'), (error: Error) => {
      assert.match(error.message, /^at-odds cannot be installed: [^]*helper-of-env==2\.0/);
      return true;
    });
  });

  test('and depends on verifiers through another package is an environment', async () => {
    const installed = await install('pypi:through-another');
    assert(installed.done);
    assert.equal(installed.api, 'v0');
  });

  test('that nothing of needs verifiers is none, nor one that needs it elsewhere', async () => {
    await assert.rejects(install('pypi:unrelated'), /unrelated 1\.0 of the package index is not an environment: it does not need verifiers, nor does anything that it depends on/); // prettier-ignore
    await assert.rejects(install('pypi:on-windows'), /asks for verifiers; sys_platform == "win32", which does not hold here/); // prettier-ignore
  });

  test('under a name with capitals is found by the module that lies in it', async () => {
    const installed = await install('pypi:Capital_Env');
    assert(installed.done);
    assert.deepEqual([installed.package.module, installed.package.version], ['capital_env', '0.1']);
    const found = environmentFinder({ projectFolder: project })('capital-env', { builtin: false });
    assert(found.ok && found.python?.version === '0.1');
  });

  test('is installed from its file, with extras', async () => {
    const file = wheel('by-file', '0.3', { requires: ['verifiers<0.4; extra == "env"'], extras: ['env'], folder: path.join(project, 'dist') }); // prettier-ignore
    await assert.rejects(install('./dist/by_file-0.3-py3-none-any.whl'), /needs verifiers only with its extra "env": .*whl\[env\]'/); // prettier-ignore
    const installed = await install(`${file}[env]`);
    assert(installed.done);
    assert.deepEqual(installed.package.from, { kind: 'wheel', path: file });
    const manifest = JSON.parse(readFileSync(path.join(installed.folder, 'ratchet.json'), 'utf8')) as { packages: { name: string }[] }; // prettier-ignore
    assert(manifest.packages.some(({ name }) => name === 'by-file'));
  });

  test('that is not in the index says so first', async () => {
    await assert.rejects(install('pypi:nothing-of-that-name'), /^ConfigInvalid: nothing-of-that-name cannot be installed: ERROR: Could not find/); // prettier-ignore
  });
});
