/** Requirements and origins of packages, as people and wheels write them. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { foreignPackage } from '../../backends/environments/packages/installed.ts';
import { moduleIn, readPackage } from '../../backends/environments/packages/package.ts';
import {
  applicableRequirements,
  extrasWithVerifiers,
  markerHolds,
  pythonsThatFit,
  readRequirement,
  verifiersRequirement,
} from '../../backends/environments/packages/requirement.ts';
import { runInstaller, InstallerFailed } from '../../backends/python/interpreter.ts';
import { readInstallSource } from '../../cli/python-environments/install-source.ts';

function folder(t: TestContext, files: Readonly<Record<string, string>> = {}): string {
  const made = mkdtempSync(path.join(tmpdir(), 'ratchet-requirements-'));
  t.after(() => rmSync(made, { recursive: true }));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(made, name)), { recursive: true });
    writeFileSync(path.join(made, name), text);
  }
  return made;
}

describe('what a package asks of verifiers', () => {
  test('behind an extra is asked for with that extra alone', () => {
    const wheel = [
      'openai',
      'verifiers>=0.1.8; extra == "env"',
      "pytest ; extra == 'dev'",
      'own[env] ; extra == "all"',
    ];
    assert.equal(verifiersRequirement(wheel), null);
    for (const extra of ['env', 'ENV', 'all'])
      assert.equal(verifiersRequirement(wheel, { name: 'own', extras: [extra] }), '>=0.1.8', extra);
    assert.equal(verifiersRequirement(wheel, { extras: ['dev'] }), null);
    assert.equal(verifiersRequirement(wheel, { extras: 'any' }), '>=0.1.8');
    assert.deepEqual(extrasWithVerifiers(wheel, { name: 'own' }), ['env', 'all']);
  });

  test('is found under any spelling of its name, with extras, versions in brackets, addresses', () => {
    for (const [asked, specifier] of [
      ['Verifiers>=0.1', '>=0.1'],
      ['VERIFIERS [all] (>=0.1,<0.4)', '>=0.1,<0.4'],
      ['verifiers @ git+https://example.org/v.git@main ; python_version >= "3.11"', ''],
      ['verifiers', ''],
    ] as const) {
      assert.equal(verifiersRequirement(['six', asked]), specifier, asked);
    }
    for (const other of ['verifiers-rl>=0.1', 'my-verifiers', 'verifiers_tools'])
      assert.equal(verifiersRequirement([other]), null, other);
  });

  test('that depends on the Python or the system follows the one that is here; two parts of it are one', () => {
    const asks = ['verifiers>=0.1 ; python_version >= "3.11"', 'verifiers<0.4; python_full_version < "3.13.2"'];
    assert.equal(verifiersRequirement(asks, { python: '3.11.7' }), '>=0.1,<0.4');
    assert.equal(verifiersRequirement(asks, { python: '3.13.3' }), '>=0.1');
    assert.equal(verifiersRequirement(['verifiers; python_version < "3.10"'], { python: '3.11.7' }), null);
    assert.equal(verifiersRequirement(['verifiers; sys_platform == "win32"']), null);
  });

  test('of an environment in .venv counts with whatever extra it was installed with', (t) => {
    const site = 'lib/python3.11/site-packages';
    const venv = folder(t, {
      [`${site}/Some_Env-0.1.1.dist-info/METADATA`]:
        'Metadata-Version: 2.1\nName: Some-Env\nVersion: 0.1.1\nProvides-Extra: env\nRequires-Dist: verifiers>=0.3.1; extra == "env"\n\n',
      [`${site}/verifiers-0.3.1.dist-info/METADATA`]: 'Name: verifiers\nVersion: 0.3.1\n\n',
      [`${site}/some_env.py`]: 'def load_environment(): ...\n',
    });
    const found = foreignPackage(venv, 'some_env');
    assert.deepEqual([found?.name, found?.version, found?.python?.api], ['Some-Env', '0.1.1', 'v0']);
  });
});

test('a marker is read as PEP 508 has it; what is not known here holds', () => {
  const asked = { python: '3.12.4', extras: ['a-b'] };
  for (const [marker, holds] of [
    ['python_version >= "3.9" and python_version < "3.13"', true],
    ['python_version < "3.9" or (extra == "A_B" and implementation_name == "cpython")', true],
    ['(python_version < "3.9" or os_name == "nt") and extra == "a-b"', false],
    ['"3.10" <= python_version', true],
    ['python_version not in "3.11 3.12"', false],
    ["extra != 'a-b'", false],
    ['platform_release >= "20"', true],
    ['nonsense here', true],
  ] as const) {
    assert.equal(markerHolds(marker, asked), holds, marker);
  }
  assert.deepEqual(readRequirement('a.b_c [x, y]>= 1, <2 ; os_name == "posix"'), {
    name: 'a.b_c',
    extras: ['x', 'y'],
    specifier: '>= 1, <2',
    address: null,
    marker: 'os_name == "posix"',
  });
  assert.deepEqual(applicableRequirements(['a; extra == "x"', 'b']).map(({ name }) => name), ['b']); // prettier-ignore
});

test('versions of Python that will do are named', () => {
  assert.deepEqual(pythonsThatFit('>=3.12,<3.14'), ['3.12', '3.13']);
  assert.deepEqual(pythonsThatFit('>=3.11.5,<3.13'), ['3.11', '3.12']);
  assert.deepEqual(pythonsThatFit('<3.11'), []);
  assert.deepEqual(pythonsThatFit('==3.12.*'), ['3.12']);
});

describe('where a package is to come from', () => {
  test('is written as pip takes it, behind pypi:', (t) => {
    const project = folder(t);
    for (const [written, requirement, extras] of [
      ['pypi:some-environment[env]==0.1.1', 'some-environment[env]==0.1.1', ['env']],
      ['pypi:NAME[a,b]==1.2', 'NAME[a,b]==1.2', ['a', 'b']],
      ['pypi:name [ a , b ] >= 1, < 2', 'name[a,b]>=1,<2', ['a', 'b']],
      ['pypi:name~=0.3.0', 'name~=0.3.0', []],
      ['pypi:name!=0.2', 'name!=0.2', []],
      ['pypi:name===0.1.0+local', 'name===0.1.0+local', []],
      ['pypi:name==0.1.*', 'name==0.1.*', []],
      ['pypi:name (>=0.1)', 'name>=0.1', []],
      ['PyPI:Some.Name_x', 'Some.Name_x', []],
      ['pypi:name[]', 'name', []],
    ] as const) {
      const source = readInstallSource(written, project);
      assert.deepEqual([source.kind, source.kind === 'pypi' && source.requirement, source.extras], ['pypi', requirement, extras], written); // prettier-ignore
    }
  });

  test('in other forms of pip is refused by name, with what to type', (t) => {
    const project = folder(t, { 'x.tar.gz': '' });
    for (const [written, typed] of [
      ['git+https://example.org/o/my-env.git@v1#subdirectory=envs/a', /git clone https:\/\/example\.org\/o\/my-env\.git \.\/packages\/my-env && git -C \.\/packages\/my-env checkout v1\n  npx ratchet-rl env install \.\/packages\/my-env\/envs\/a/], // prettier-ignore
      ['git+ssh://git@example.org/o/my-env', /git clone ssh:\/\/git@example\.org\/o\/my-env \.\/packages\/my-env\n/],
      ['my-env @ git+https://example.org/o/my-env', /git clone https:\/\/example\.org\/o\/my-env /],
      ['pypi:my-env @ git+https://example.org/o/my-env', /names an address[^]*git clone https/],
      ['https://example.org/my_env-0.1-py3-none-any.whl', /Fetch it, read it/],
      ['my-env==0.2', /written pypi:my-env==0\.2/],
      ['my-env[a]>=0.2,<1', /written pypi:my-env\[a\]>=0\.2,<1/],
      ['pypi:my-env@0.2', /written pypi:my-env==0\.2/],
      ['pypi:owner/my-env', /Of the Environments Hub it is owner\/my-env/],
      ['pypi:my-env; python_version > "3"', /Leave the marker out: pypi:my-env/],
      ['pypi:my-env 0.2', /Versions are written pypi:my-env==0\.1\.2/],
      ['pypi:my-env[a b]', /extras are no names/],
      ['./x.tar.gz', /source distribution: unpack it/],
      ['./not-there-0.1-py3-none-any.whl', /no such file/],
    ] as const) {
      assert.throws(() => readInstallSource(written, project), typed, written);
    }
  });

  test('may be a folder, a wheel or a name with extras', (t) => {
    const project = folder(t, { 'dist/my_env-0.1-py3-none-any.whl': '' });
    const kinds = [
      './a[env]',
      'my-env[a,b]',
      './dist/my_env-0.1-py3-none-any.whl[env]',
      'dist/my_env-0.1-py3-none-any.whl',
      'owner/name[x]',
      `file://${project}/a`,
    ].map((written) => {
      const { kind, extras } = readInstallSource(written, project);
      return `${kind} ${extras.join()}`;
    });
    assert.deepEqual(kinds, ['path env', 'name a,b', 'wheel env', 'wheel ', 'hub x', 'path ']);
  });
});

test('a folder’s extras decide what it asks for; one that it lacks is refused with those that it has', (t) => {
  const made = folder(t, {
    'pyproject.toml':
      '[project]\nname = "Some-Env"\n[project.optional-dependencies]\nenv = ["verifiers>=0.3.1"]\ndev = []\n',
    'src/some_env/__init__.py': '',
  });
  assert.equal(readPackage(made).requires, null);
  const { requires, module } = readPackage(made, { extras: ['env'] });
  assert.deepEqual([requires, module, moduleIn(made, 'other')], ['>=0.3.1', 'some_env', 'other']);
  assert.throws(() => readPackage(made, { extras: ['evn'] }), /expected the extra "evn" in .*; it has env, dev\./);
});

describe('the reason of an installer', () => {
  const ended = async (script: string): Promise<string> => {
    const failed = await runInstaller('sh', ['-c', script], { env: {} }).catch((error: unknown) => error);
    assert(failed instanceof InstallerFailed);
    assert(failed.message.startsWith(failed.reason), failed.message);
    return failed.reason;
  };

  test('of uv is whole: the lines that follow its first say why', async () => {
    const reason = await ended(
      `echo 'error: No solution found when resolving dependencies
  cause: Because too-new==0.1.0 requires Python >=3.12 and only too-new==0.1.0 is available, all versions cannot be used.
         And because you require too-new, your requirements are unsatisfiable.' >&2; exit 1`,
    );
    assert.match(reason, /^error: No solution found[^]*requires Python >=3\.12[^]*are unsatisfiable\.$/);
  });

  test('of pip has its account of a conflict, which it prints elsewhere', async () => {
    const reason = await ended(
      `echo 'Collecting a'; echo 'The conflict is caused by:
    a 1.0 depends on six==1.16.0
    b 1.0 depends on six==1.17.0

To fix this you could try to:
1. loosen'; echo 'WARNING: Running pip as the root user
ERROR: Cannot install a and b because these package versions have conflicting dependencies.
ERROR: ResolutionImpossible: for help visit https://example.org' >&2; exit 1`,
    );
    assert.equal(
      reason,
      'ERROR: Cannot install a and b because these package versions have conflicting dependencies.\nThe conflict is caused by:\n    a 1.0 depends on six==1.16.0\n    b 1.0 depends on six==1.17.0',
    );
  });

  test('of a build that failed has what the build said', async () => {
    const reason = await ended(
      `echo '  error: subprocess-exited-with-error
  × Building wheel for x did not run successfully.
  │ exit code: 1
  ╰─> [2 lines of output]
      gcc: not found
      [end of output]' >&2; exit 1`,
    );
    assert.match(reason, /^error: subprocess[^]*gcc: not found/);
  });

  test('that is longer than a screen is bounded, and its beginning kept', async () => {
    const reason = await ended(
      'echo "ERROR: first" >&2; i=0; while [ $i -lt 200 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1',
    );
    assert.match(reason, /^ERROR: first\nline 0\n[^]*… and 141 more lines$/);
  });
});
