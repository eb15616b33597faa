import assert from 'node:assert/strict';
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { namedIn } from '../../load/grants/grant.ts';
import { variablesOfWorkers } from '../../backends/environments/variables.ts';
import { needsOf } from '../../cli/start/processes.ts';
import { examineRunFile } from '../../load/checks/examine-run-file.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { ConfigProblems } from '../../config/toml/problems.ts';

const head = 'model = "preset:chars-0.4m"\n[[env]]\nid = "mine"\nkind = "agent"\n';
const command = 'command = ["python3", "agent.py"]\n';
const tasks = 'tasks = "./tasks.jsonl"\n';
const score = '[env.score]\ncommand = ["python3", "score.py"]\n';

async function load(t: TestContext, text: string, rows = '{"prompt": "one"}\n{"task": "two", "answer": 2}\n') {
  const folder = await folderWith(t, text, rows);
  return { folder, loaded: await loadRunConfig('run.toml', { projectFolder: folder }) };
}

async function folderWith(t: TestContext, text: string, rows: string): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-agents-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await writeFile(path.join(folder, 'run.toml'), text);
  await writeFile(path.join(folder, 'tasks.jsonl'), rows);
  await writeFile(path.join(folder, 'agent.py'), 'raise SystemExit("never run while a file is read")');
  await symlink('agent.py', path.join(folder, 'link.py'));
  return folder;
}

async function problems(t: TestContext, text: string, rows?: string): Promise<string> {
  const error = await load(t, text, rows).then(
    () => assert.fail('it was accepted'),
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof ConfigProblems, String(error));
  return error.problems.map(({ path: at, expected, received }) => `${at}: ${expected}; ${received}`).join('\n');
}

describe('an agent in a run file', () => {
  test('has its files by absolute paths and digests, is granted whole, and nothing of it is run', async (t) => {
    const { folder, loaded } = await load(t, `${head}${command}${tasks}[env.sandbox]\nfiles = "./agent.py"\n${score}`);
    const { program } = loaded.spec.environments[0]!;
    assert.equal(program!.tasks.path, path.join(folder, 'tasks.jsonl'));
    assert.match(program!.tasks.sha256!, /^[0-9a-f]{64}$/);
    assert.match(program!.sandbox.files!.sha256!, /^[0-9a-f]{64}$/);
    assert.deepEqual(program!.sandbox.pool.provider, { kind: 'namespace', python: 'python3' });
    const named = namedIn(loaded.spec);
    assert.ok(named.includes(path.join(folder, 'agent.py')) && named.some((line) => line.startsWith('environment ')));
  });

  test('may name the command that goes on in a snapshot, and how often one is taken', async (t) => {
    const resumed = `${head}${command}${tasks}${score}[env.resume]\ncommand = ["python3", "agent.py", "--resume"]\n`;
    const resumeOf = async (text: string) => (await load(t, text)).loaded.spec.environments[0]!.program!.resume;
    assert.deepEqual(await resumeOf(resumed), { command: ['python3', 'agent.py', '--resume'], every: 1 });
    assert.equal((await resumeOf(`${resumed}every = 5\n`))!.every, 5);
    assert.equal(await resumeOf(`${head}${command}${tasks}${score}`), null);
    assert.match(await problems(t, `${head}${command}${tasks}${score}[env.resume]\nevery = 2\n`), /env\[0\]\.resume\.command: a program and its arguments/); // prettier-ignore
    assert.match(await problems(t, `${resumed}every = 0\n`), /env\[0\]\.resume\.every: an integer ≥ 1/);
    const other = 'model = "preset:chars-0.4m"\n[[env]]\nid = "reverse-text"\n[env.resume]\ncommand = ["x"]\n';
    assert.match(await problems(t, other), /kind = "agent" beside it: no other environment has such a setting/);
  });

  test('needs a command, tasks and one score; what is missing is said with what to do', async (t) => {
    const said = await problems(t, head);
    assert.match(said, /env\[0\]\.command: the program beside kind = "agent", such as \["python3", "agent\.py"\]; nothing/); // prettier-ignore
    assert.match(said, /env\[0\]\.tasks: the tasks beside kind = "agent"/);
    assert.match(said, /env\[0\]\.score\.command: one of command, function and judge/);
    const both = await problems(t, `${head}${command}${tasks}${score}function = "./score.ts"\n`);
    assert.match(both, /env\[0\]\.score\.function: one of command, function and judge.*; command and function/);
  });

  test('settings of an agent beside another environment are refused', async (t) => {
    const said = await problems(t, `model = "preset:chars-0.4m"\n[[env]]\nid = "reverse-text"\n${command}`);
    assert.match(said, /env\[0\]\.command: kind = "agent" beside it/);
  });

  test('a sandbox that cannot be held to one route has to say so; keys of other kinds are refused', async (t) => {
    const ssh = await problems(t, `${head}${command}${tasks}[env.sandbox]\nkind = "ssh"\nimage = "x"\n${score}`);
    assert.match(ssh, /env\[0\]\.sandbox\.network: "open": a sandbox of kind "ssh" cannot be held to one route/);
    assert.match(ssh, /env\[0\]\.sandbox\.host: host beside kind = "ssh"/);
    assert.match(ssh, /env\[0\]\.sandbox\.image: nothing/);
    const socket = await problems(t, `${head}${command}${tasks}[env.sandbox]\nsocket = "/run/x.sock"\n${score}`);
    assert.match(socket, /env\[0\]\.sandbox\.socket: kind = "docker" beside it; kind = "namespace"/);
  });

  test('each wrong row of the tasks is named with its line', async (t) => {
    const rows = [
      '{"prompt": "fine"}',
      'not json',
      '[]',
      '{"answer": "4"}',
      '{"prompt": "x", "files": {"../../etc/passwd": "y"}}',
      '{"prompt": "x", "files": {"a//b": "y"}}',
      '{"prompt": "x", "files": {"/abs": "y"}}',
      '{"prompt": 3}',
    ];
    const said = await problems(t, `${head}${command}${tasks}${score}`, rows.join('\n'));
    for (const [line, why] of Object.entries({
      2: 'no JSON',
      3: 'no object',
      4: 'neither "prompt" nor "task", only answer',
      5: String.raw`files: "\.\./\.\./etc/passwd", expected a path below the work folder`,
      6: 'files: "a//b"',
      7: 'files: "/abs"',
      8: 'prompt: ',
    }))
      assert.match(said, new RegExp(String.raw`tasks\.jsonl:${line}: ${why}`));
    assert.doesNotMatch(said, /tasks\.jsonl:1:/);
    assert.match(await problems(t, `${head}${command}${tasks}${score}`, '\n'), /which is empty/);
  });

  test('check says once what is wrong with files of an agent', async (t) => {
    const briefly = (text: string) => text.replace('[[env]]', '[sampling]\nmax_tokens = 8\n[[env]]');
    const check = async (text: string, rows: string) =>
      (await examineRunFile('run.toml', { projectFolder: await folderWith(t, briefly(text), rows) })).problems;
    const row = '{"prompt": "one", "files": {"../up": "x"}}';
    assert.deepEqual(
      (await check(`${head}${command}${tasks}${score}`, row)).map(({ path: at }) => at),
      ['env[0].tasks'],
    );
    const gone = `${head}${command}${tasks}[env.sandbox]\nfiles = "./gone"\n${score}files = "./gone.py"\n`;
    assert.deepEqual(
      (await check(gone, '{"prompt": "one"}')).map(({ path: at }) => at),
      ['env[0].sandbox.files', 'env[0].score.files'],
    );
    assert.deepEqual(await check(`${head}${command}${tasks}${score}`, '{"prompt": "one"}'), []);
  });

  test('files that are missing, or links, are refused where they are named', async (t) => {
    const at = (file: string) => `${head}${command}${tasks}[env.sandbox]\nfiles = "./${file}"\n${score}`;
    assert.match(await problems(t, at('gone')), /env\[0\]\.sandbox\.files: a file, or a folder.*there is no such file/);
    assert.match(await problems(t, at('link.py')), /env\[0\]\.sandbox\.files: .*neither a file nor a folder/);
    const gone = `${head}${command}tasks = "./gone.jsonl"\n[env.score]\nfunction = "./gone.py:grade"\n`;
    const said = await problems(t, gone);
    assert.match(said, /env\[0\]\.tasks: .*there is no such file/);
    assert.match(said, /env\[0\]\.score\.function: .*there is no such file/);
  });

  test('keys of its models and of its judge reach the workers, and are asked for before anything starts', async (t) => {
    const models = '[[env.models]]\nname = "helper"\nbase_url = "http://localhost:1/v1"\napi_key_var = "HELPER_KEY"\n';
    const judge = '[env.score.judge]\nprompt = "Is it good?"\nmodel = "m"\nbase_url = "http://localhost:2/v1"\napi_key_var = "JUDGE_KEY"\n'; // prettier-ignore
    const { loaded } = await load(t, `${head}env_vars = ["TOOL_KEY"]\n${command}${tasks}${models}${judge}`);
    const { environments } = loaded.spec;
    const set = { TOOL_KEY: 'a', HELPER_KEY: 'b', JUDGE_KEY: 'c' };
    assert.deepEqual(variablesOfWorkers(environments, set), Object.keys(set));
    assert.throws(() => variablesOfWorkers(environments, { TOOL_KEY: 'a', HELPER_KEY: 'b' }), /JUDGE_KEY, named by api_key_var of .*Set it where/); // prettier-ignore
    assert.deepEqual(needsOf(loaded.spec).environments?.slice(0, 1), environments);
    const { obstacles } = await examineRunFile('run.toml', { projectFolder: '.', looked: loaded });
    const said = obstacles.map(({ says }) => says).join('\n');
    assert.match(said, /HELPER_KEY, which api_key_var of \[\[env\.models\]\].* is not set here/);
    assert.match(said, /JUDGE_KEY, which api_key_var/);
  });

  test('a literal key is refused', async (t) => {
    const model = '[[env.models]]\nname = "helper"\nbase_url = "http://localhost:1/v1"\napi_key_var = "sk-abcdefghijklmnop"\n'; // prettier-ignore
    const said = await problems(t, `${head}${command}${tasks}${score}${model}`);
    assert.match(said, /env\[0\]\.models\[0\]\.api_key_var/);
    assert.doesNotMatch(said, /abcdefgh/);
  });
});
