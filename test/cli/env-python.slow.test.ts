/** `ratchet env` for Python environments, with the real verifiers from the package index. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { installedVersion, managedEnvironments } from '../../backends/environments/packages/installed.ts';
import { findPython, pythonForVerifiers } from '../../backends/python/interpreter.ts';
import { readInstallSource } from '../../cli/python-environments/install-source.ts';
import { installEnvironment } from '../../cli/python-environments/install.ts';
import { writePythonEnvironment } from '../../cli/python-environments/write.ts';
import { ensureVerifiers } from '../../workers/install/environment-python.ts';

const cli = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));
const silent = (): void => undefined;

/** false, or why Python environments cannot be tried here. */
const skip = await ensureVerifiers('v0', { log: (line) => void process.stderr.write(`${line}\n`) }).then(
  () => false as const,
  (error: Error) => `verifiers cannot be installed here: ${error.message}`,
);

function folder(
  t: TestContext | { after: (done: () => void) => void },
  files: Readonly<Record<string, string>> = {},
): string {
  const made = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-env-python-')));
  t.after(() => rmSync(made, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(made, name)), { recursive: true });
    writeFileSync(path.join(made, name), text);
  }
  return made;
}

interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

function ratchet(cwd: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Ended> {
  return new Promise((resolve) => {
    const options = { cwd, env: { ...process.env, NO_COLOR: '1', ...env } };
    execFile(process.execPath, [cli, ...args], options, (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr }),
    );
  });
}

function pyproject(name: string, dependencies: readonly string[] = ['verifiers>=0.3.1,<0.4']): string {
  return `[project]
name = "${name}"
version = "0.2.0"
dependencies = ${JSON.stringify(dependencies)}
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build]
include = ["*.py"]
`;
}

describe('where an environment is to come from is written, never guessed', () => {
  test('each kind of source has a spelling of its own', (t) => {
    const project = folder(t);
    const kinds = ['my-env', './x', '../x', '/x', 'owner/name', 'owner/name@0.1', 'pypi:six', 'pypi:six==1.16.0'].map(
      (written) => readInstallSource(written, project).kind,
    );
    assert.deepEqual(kinds, ['name', 'path', 'path', 'path', 'hub', 'hub', 'pypi', 'pypi']);
    for (const written of ['pypi:', 'pypi:-x', 'pypi:six --index-url=x', 'a/b/c', '-x'])
      assert.throws(() => readInstallSource(written, project), /expected the NAME of a folder/, written);
  });

  test('what may be a folder here or an owner’s package is asked for', (t) => {
    const project = folder(t, { 'environments/my_env/pyproject.toml': '' });
    assert.throws(() => readInstallSource('environments/my_env', project), /which is a folder here: write \.\/environments\/my_env/); // prettier-ignore
  });

  test('a bare name stands for a folder of ./environments, or what to type is said and nothing is fetched', async (t) => {
    const project = folder(t);
    const said: string[] = [];
    const options = { projectFolder: project, log: (line: string) => void said.push(line) };
    assert.deepEqual(await installEnvironment('gsm8k', options), { done: false, code: 1 });
    assert.match(said.join('\n'), /no folder environments\/gsm8k[^]*may be an unrelated package[^]*pypi:gsm8k/);
    assert.deepEqual(await installEnvironment('wordle', options), { done: false, code: 0 });
  });

  test('an id that is not the package’s name is refused with both', async (t) => {
    const project = folder(t, { 'environments/my_env/pyproject.toml': pyproject('their-env') });
    await assert.rejects(
      installEnvironment('my-env', { projectFolder: project, log: silent }),
      /asked for was "my-env" \(environments\/my_env\), and .*pyproject\.toml has name = "their-env"/,
    );
  });
});

describe('the search for a Python', () => {
  /** Programs that answer what they are asked about themselves. */
  function programs(t: TestContext, answers: Readonly<Record<string, string>>): NodeJS.ProcessEnv {
    const bin = folder(t);
    for (const [name, answer] of Object.entries(answers)) {
      writeFileSync(path.join(bin, name), `#!/bin/sh\necho "${answer}"\n`);
      chmodSync(path.join(bin, name), 0o755);
    }
    return { PATH: `${bin}:/nowhere` };
  }

  test('takes the first that will do', async (t) => {
    const environment = programs(t, { 'python3.13': '3.13.1 0', 'python3.12': '3.12.4 1', python3: '3.9.2 1' });
    assert.deepEqual(await findPython(pythonForVerifiers, environment), { command: 'python3.12', version: '3.12.4', uv: false }); // prettier-ignore
  });

  test('says what to install where venv is missing, as on Debian', async (t) => {
    const environment = programs(t, { python3: '3.11.2 0' });
    await assert.rejects(findPython(pythonForVerifiers, environment), /cannot make virtual environments[^]*apt install python3\.11-venv/); // prettier-ignore
  });

  test('names what is too old or too new, and what it was told to take', async (t) => {
    const environment = programs(t, { python3: '3.14.0 1', mine: '3.8.1 1' });
    await assert.rejects(findPython(pythonForVerifiers, environment), /3\.11 or newer, older than 3\.14, is needed, but .*python3 is 3\.14\.0/); // prettier-ignore
    await assert.rejects(findPython(pythonForVerifiers, { ...environment, RATCHET_PYTHON: 'mine' }), /mine is 3\.8\.1 \(named by RATCHET_PYTHON\)/); // prettier-ignore
  });

  test('needs no venv where uv is, which gets a Python where there is none', async (t) => {
    const environment = programs(t, { uv: 'uv 0.13', python3: '3.11.2 0' });
    assert.deepEqual(await findPython(pythonForVerifiers, environment), { command: 'python3', version: '3.11.2', uv: true }); // prettier-ignore
    const { command } = await findPython(pythonForVerifiers, programs(t, { uv: 'uv 0.13' }));
    assert.equal(command, '>=3.11,<3.14');
  });
});

test('a new Python environment is written whole, and nothing is overwritten', async (t) => {
  const project = folder(t);
  const files = await writePythonEnvironment('my-words', project);
  assert(files.includes('my-words.toml') && files.includes('environments/my_words/my_words.py'));
  for (const file of files) assert(!/my[-_]env/.test(readFileSync(path.join(project, file), 'utf8')), file);
  const { problems, missing, sftRows } = await loadRunConfig('my-words.toml', {
    projectFolder: project,
    isOnlyLookedAt: true,
  });
  assert.deepEqual(problems, []);
  assert(sftRows !== null && missing.every(({ install }) => install === 'my-words'));
  await assert.rejects(writePythonEnvironment('my-words', project), /is here already, and nothing is overwritten/);
  await assert.rejects(writePythonEnvironment('my--words', project), /cannot be a package's name/);
});

describe('a package of verifiers', { skip, concurrency: false }, () => {
  const project = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-env-python-')));
  after(() => rmSync(project, { recursive: true, force: true }));
  const write = (name: string, text: string): void => {
    mkdirSync(path.dirname(path.join(project, name)), { recursive: true });
    writeFileSync(path.join(project, name), text);
  };

  test('is written, installed, looked at, checked, and uninstalled by one command each', async () => {
    await ratchet(project, ['env', 'init', 'my-words', '--python']);
    const installed = await ratchet(project, ['env', 'install', 'my-words']);
    assert.equal(installed.code, 0, installed.stderr);
    assert.match(installed.stdout, /^my-words 0\.1\.0 needs verifiers>=0\.3\.1,<0\.4: api v0, verifiers 0\.3\.1$/m);
    assert.match(
      installed.stdout,
      /^installed my-words 0\.1\.0 \(v0, verifiers 0\.3\.1\) in \.ratchet\/python\/v0-0\.3\.1/m,
    );
    assert.match((await ratchet(project, ['env', 'list'])).stdout, /^ {2}my-words +0\.1\.0 +v0, verifiers 0\.3\.1 +\.\/environments\/my_words$/m); // prettier-ignore

    const info = await ratchet(project, ['env', 'info', 'my-words', '--args', '{"words": 100}', '--held-out']);
    assert.match(info.stdout, /examples {6}90 to train on, 10 held out/);
    assert.match(info.stdout, /arguments {5}words {7}= 2000 {2}int/);
    assert.match(info.stdout, /rewards {7}letters_right {2}weight 1\n +exact_match {4}metric only/);
    assert.match(info.stdout, /Example 0 of those held out, right answer "[A-Z]+":\n {2}user {7}[a-z]+$/m);

    const checked = await ratchet(project, ['env', 'check', 'my-words']);
    assert.equal(checked.code, 0, checked.stdout);
    assert.match(checked.stdout, /✓ loads: SingleTurnEnv, 1800 examples/);
    assert.match(checked.stdout, /✓ plays: ok after one made-up answer; scored from its stored row: reward 0 /);

    const file = await ratchet(project, ['check', 'my-words.toml']);
    assert.match(file.stdout, /environment {3}my-words, a Python package, version 0\.1\.0/);
    assert.equal((await ratchet(project, ['env', 'uninstall', 'my-words'])).code, 0);
    assert.match(
      (await ratchet(project, ['env', 'list'])).stdout,
      /not installed: npx ratchet-rl env install my-words/,
    );
  });

  test('that imports what it does not depend on is refused with the traceback, its line and the fix', async () => {
    write('environments/lacking/pyproject.toml', pyproject('lacking'));
    write(
      'environments/lacking/lacking.py',
      'import verifiers\nimport not_there_at_all.sub\n\ndef load_environment(): ...\n',
    );
    const { code, stderr } = await ratchet(project, ['env', 'install', 'lacking']);
    assert.equal(code, 2);
    assert.match(stderr, /File ".*lacking\.py", line 2[^]*No module named 'not_there_at_all'/);
    assert.match(stderr, /does not depend on \(.*lacking\.py:2\)[^]*dependencies = \[ …, "not-there-at-all" \]/);
    assert(!managedEnvironments(project).some(({ manifest }) => manifest.packages.length > 0), 'nothing is recorded');
  });

  test('of the Environments Hub is fetched by the prime CLI; methods that do not fit the installed verifiers are named with line and fix, and exit code 1', async (t) => {
    write('hub/pyproject.toml', pyproject('bad-turns', ['verifiers>=0.1.5', 'six==1.16.0']));
    write('hub/bad_turns.py', badTurns);
    const bin = folder(t);
    const prime = `#!/bin/sh\n[ "$1 $2 $3" = "env pull owner/bad-turns@0.2.0" ] && cp ${project}/hub/* "$5"\n`;
    writeFileSync(path.join(bin, 'prime'), prime);
    chmodSync(path.join(bin, 'prime'), 0o755);
    const PATH = `${bin}:${process.env['PATH'] ?? ''}`;
    const installed = await ratchet(project, ['env', 'install', 'owner/bad-turns@0.2.0', '--json'], { PATH });
    assert.equal(installed.code, 0, installed.stderr);
    const { package: one } = JSON.parse(installed.stdout) as { package: { name: string; from: { id?: string } } };
    assert.deepEqual([one.name, one.from.id], ['bad-turns', 'owner/bad-turns@0.2.0']);
    const { code, stdout } = await ratchet(project, ['env', 'check', 'bad-turns']);
    assert.equal(code, 1);
    const at = '\\.ratchet/python/hub/owner--bad_turns/bad_turns\\.py';
    for (const said of [
      `✗ ${at}:6 {2}BadTurns\\.is_completed takes \\(messages, state\\) where verifiers gives \\(state\\)`,
      'write the condition as a method with @vf\\.stop',
      `✗ ${at}:9 {2}BadTurns\\.env_response is a plain function where its parent's is async`,
      `✗ ${at}:9 {2}BadTurns\\.env_response returns messages and state`,
      `! ${at}:12 {2}BadTurns\\.update_tool_args is never called`,
      '✗ its rollout failed: TypeError: BadTurns\\.is_completed\\(\\) missing 1 required',
    ]) {
      assert.match(stdout, new RegExp(said));
    }
  });

  test('that wants another version of what an environment here has pinned is refused, and takes nothing from it', async () => {
    write('environments/at_odds/pyproject.toml', pyproject('at-odds', ['verifiers>=0.3.1,<0.4', 'six==1.17.0']));
    write('environments/at_odds/at_odds.py', 'def load_environment(): ...\n');
    const installing = installEnvironment('at-odds', { projectFolder: project, log: silent });
    await assert.rejects(installing, /What it depends on does not go together[^]*--set NAME/);
    const [managed] = managedEnvironments(project);
    assert.equal(installedVersion(managed!.folder, 'six'), '1.16.0');
  });

  test('of the v1 API is found out by its code, and gets a virtual environment of its own', async () => {
    write('environments/toy_v1/pyproject.toml', pyproject('toy-v1', ['verifiers>=0.3']));
    write('environments/toy_v1/toy_v1.py', toyTaskset);
    const installed = await ratchet(project, ['env', 'install', 'toy-v1']);
    assert.equal(installed.code, 0, installed.stderr);
    assert.match(
      installed.stdout,
      /^installed toy-v1 0\.2\.0 \(v1, verifiers 0\.4\.0\) in \.ratchet\/python\/v1-0\.4\.0/m,
    );
    assert.match(
      (await ratchet(project, ['env', 'info', 'toy-v1'])).stdout,
      /api v1, SingleAgentEnv\n {2}examples {6}8 to train on/,
    );
    const { code, stdout } = await ratchet(project, ['env', 'check', 'toy-v1']);
    assert.equal(code, 0, stdout);
    assert.match(stdout, /✓ plays: ok after one made-up answer; scored where it was played: reward 0 \(exact 0\)/);
  });

  test('is looked at on the index before anything of it is installed: another package of that name is refused', async () => {
    const before = managedEnvironments(project).map(({ manifest }) => manifest);
    await assert.rejects(
      installEnvironment('pypi:six', { projectFolder: project, log: silent }),
      /six [\d.]+ of the package index is not an environment: it does not need verifiers/,
    );
    assert.deepEqual(managedEnvironments(project).map(({ manifest }) => manifest), before); // prettier-ignore
  });
});

const badTurns = `import verifiers as vf
from datasets import Dataset


class BadTurns(vf.MultiTurnEnv):
    async def is_completed(self, messages, state, **kwargs):
        return len(state["trajectory"]) > 2

    def env_response(self, messages, state):
        return [{"role": "user", "content": "again"}], state

    async def update_tool_args(self, tool_args, messages, state, **kwargs):
        return tool_args


def load_environment(n: int = 4):
    data = Dataset.from_list([{"question": f"q{i}", "answer": "a"} for i in range(n)])
    return BadTurns(dataset=data, rubric=vf.Rubric(funcs=[lambda completion: 1.0]), max_turns=3)
`;

const toyTaskset = `import verifiers.v1 as vf

__all__ = ["ToyTaskset"]


class Data(vf.TaskData):
    answer: str


class Toy(vf.Task[Data]):
    @vf.stop
    async def answered(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "") == self.data.answer)


class Config(vf.TasksetConfig):
    n: int = 8


class ToyTaskset(vf.Taskset[Toy, Config]):
    def load(self) -> list[Toy]:
        rows = range(self.config.n)
        return [Toy(Data(idx=i, prompt=f"Reverse: item{i}", answer=f"{i}meti"), self.config.task) for i in rows]
`;
