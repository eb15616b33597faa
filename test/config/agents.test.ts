import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
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
    assert.deepEqual(await resumeOf(resumed), { command: ['python3', 'agent.py', '--resume'], every: 1, delayS: 0 });
    const { every, delayS } = (await resumeOf(`${resumed}every = 5\ndelay = 0.5\n`))!;
    assert.deepEqual([every, delayS], [5, 0.5]);
    assert.equal(await resumeOf(`${head}${command}${tasks}${score}`), null);
    assert.match(await problems(t, `${head}${command}${tasks}${score}[env.resume]\nevery = 2\n`), /env\[0\]\.resume\.command: a program and its arguments/); // prettier-ignore
    assert.match(await problems(t, `${resumed}every = 0\n`), /env\[0\]\.resume\.every: an integer from 1 to 1000000/);
    assert.match(await problems(t, `${resumed}delay = -1\n`), /env\[0\]\.resume\.delay: a number from 0 to 3600/);
    const helped = `${resumed}[[env.models]]\nname = "helper"\nbase_url = "http://localhost:1"\n`;
    assert.match(await problems(t, helped), /env\[0\]\.resume: either \[env\.resume\] or \[\[env\.models\]\]/);
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
    const option = await problems(t, `${head}${command}${tasks}[env.sandbox]\nkind = "ssh"\nnetwork = "open"\nhost = "-oProxyCommand=x"\n${score}`); // prettier-ignore
    assert.match(option, /sandbox\.host: a host as ssh takes it, .*no "-" at its beginning; "-oProxyCommand=x"/);
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
      5: String.raw`files: expected a path below the work folder, such as "src/main\.py"; found "\.\./\.\./etc/passwd"`,
      6: 'files: expected a path.*; found "a//b"',
      7: 'files: expected a path.*; found "/abs"',
      8: 'prompt: expected a text that is not empty, or a list of messages; found 3',
    }))
      assert.match(said, new RegExp(String.raw`tasks\.jsonl:${line}: ${why}`));
    assert.doesNotMatch(said, /tasks\.jsonl:1:/);
    assert.match(await problems(t, `${head}${command}${tasks}${score}`, '\n'), /which is empty/);
  });

  for (const [row, why] of Object.entries({
    '{"prompt": [{"role": "bot", "content": "x"}]}': 'prompt[0].role: expected one of "system", "user", "assistant", "tool"; found "bot"', // prettier-ignore
    '{"prompt": [{"role": "user", "content": 4}]}': 'prompt[0].content: expected a text, or a list of parts; found 4',
    '{"task": ""}': 'task: expected a text that is not empty; found ""',
    '{"prompt": "x", "answer": {"a": 1}}': 'answer: expected a text, a number, true or false; found {"a":1}',
    '{"prompt": "x", "files": []}': 'files: expected a table of files, {"PATH": "TEXT"}; found []',
    '{"prompt": "x", "files": {"a.py": 3}}': 'files["a.py"]: expected the text of the file, or {"base64": "…"} with its bytes; found 3', // prettier-ignore
    '{"prompt": "x", "files": {".": "y"}}': 'files: expected a path below the work folder, such as "src/main.py"; found "."', // prettier-ignore
    '{"prompt": "x", "files": {"a": "1"}, "score_files": {"a/b": "2"}}': 'score_files: expected "a" to be a file or a folder; found both, since "a/b" lies in it', // prettier-ignore
    '{"prompt": "x", "files": {"a/b": "1"}, "score_files": {"a": "2"}}': 'score_files: expected "a" to be a file or a folder; found both, since "a/b" lies in it', // prettier-ignore
    '{"prompt": "x", "files": {"a": "1", "a/b": "2"}}': 'files: expected "a" to be a file or a folder; found both, since "a/b" lies in it', // prettier-ignore
    '{"prompt": "x", "info": 4}': 'info: expected a table; found 4',
    '{"prompt": "x", "image": "python:3"}': 'image: expected none: a sandbox of kind "namespace" has the programs of its machine; found "python:3"', // prettier-ignore
    '{"prompt": "a\\u0000b"}': 'prompt: expected a text without a zero character; found one at position 1',
    '{"prompt": "x", "files": {"a": "\\u0000"}}': 'files.a: expected a text without a zero character: such bytes are written as {"base64": "…"}; found one at position 0', // prettier-ignore
    '{"prompt": "x", "info": {"a": ["\\ud800"]}}': 'info.a[0]: expected a text that UTF-8 can say; found half of a surrogate pair', // prettier-ignore
    '{"prompt": "x", "info": {"__proto__": {}}}': 'info: expected another key than "__proto__", which no program keeps',
    '{"__proto__": 1, "prompt": "x"}': 'the row: expected another key than "__proto__", which no program keeps',
    [`{"prompt": ${'['.repeat(100_000)}${']'.repeat(100_000)}}`]: 'prompt: expected at most 64 levels; found more',
  }))
    test(`a row is refused in our own words: ${why.slice(0, 60)}`, async (t) => {
      const said = await problems(t, `${head}${command}${tasks}${score}`, row);
      assert.equal(said.split('tasks.jsonl:1: ')[1], why);
    });

  test('a name is not a file of one table and a folder of another', async (t) => {
    const folder = await folderWith(t, '', '');
    const put = async (file: string): Promise<void> => {
      await mkdir(path.dirname(path.join(folder, file)), { recursive: true });
      await writeFile(path.join(folder, file), '');
    };
    for (const file of ['own/src/main.py', 'own/data', 'score/data/hidden', 'fine/src/more.py']) await put(file);
    const said = async (sandbox: string, scored: string, row: object): Promise<string> => {
      const tables = `[env.sandbox]\nfiles = "./${sandbox}"\n${score}files = "./${scored}"\n`;
      await writeFile(path.join(folder, 'run.toml'), `${head}${command}${tasks}${tables}`);
      await writeFile(path.join(folder, 'tasks.jsonl'), `${JSON.stringify({ prompt: 'x', ...row })}\n`);
      const error = await loadRunConfig('run.toml', { projectFolder: folder }).then(
        () => null,
        (thrown: unknown) => thrown as ConfigProblems,
      );
      return (error?.problems ?? []).map(({ path: at, received }) => `${at}: ${received.split('jsonl:1: ').at(-1)!}`).join('\n'); // prettier-ignore
    };
    const both = (key: string, name: string, inside: string): string =>
      `env[0].tasks: ${key}: expected "${name}" to be a file or a folder; found both, since "${inside}" lies in it, with the files that [env.sandbox] and [env.score] name`;
    assert.equal(await said('own', 'fine', { files: { 'src/other.py': '', data: 'replaced' }, score_files: { 'src/main.py': '' } }), ''); // prettier-ignore
    assert.equal(await said('own', 'fine', { files: { src: '' } }), both('files', 'src', 'src/main.py'));
    assert.equal(await said('own', 'fine', { files: { 'data/one': '' } }), both('files', 'data', 'data/one'));
    assert.equal(await said('own', 'fine', { score_files: { 'data/one': '' } }), both('score_files', 'data', 'data/one')); // prettier-ignore
    assert.equal(await said('own', 'fine', { score_files: { 'src/more.py/x': '' } }), both('score_files', 'src/more.py', 'src/more.py/x')); // prettier-ignore
    assert.equal(await said('own', 'fine', { files: { 'src/more.py/x': '' } }), '', 'of the score alone, which replaces nothing before'); // prettier-ignore
    assert.match(await said('own', 'score', {}), /^env\[0\]\.score\.files: both, since "data\/hidden" lies in it/);
  });

  test('a surrogate pair, bytes in base64 and an answer of null are no problem', async (t) => {
    const row = '{"prompt": "\\ud83d\\ude00", "answer": null, "files": {"a": {"base64": "AAE="}}, "info": null}';
    await load(t, `${head}${command}${tasks}${score}`, row);
  });

  test('a container needs an image for each task', async (t) => {
    const docker = (more = '') => `${head}${command}${tasks}[env.sandbox]\nkind = "docker"\n${more}${score}`;
    assert.match(await problems(t, docker(), '{"prompt": "x"}'), /jsonl:1: image: expected the image of its container, or one for all tasks/); // prettier-ignore
    await load(t, docker(), '{"prompt": "x", "image": "python:3"}');
    await load(t, docker('image = "python:3"\n'), '{"prompt": "x"}');
  });

  test('a share of held-out tasks leaves one to train on, and where there is an evaluation one to evaluate on', async (t) => {
    const with2 = (share: string, more = '') => `${head}${share}${command}${tasks}${score}${more}`;
    const evaluation = '[eval]\ninterval = 1\n';
    for (const share of ['1', '0.9']) {
      const said = await problems(t, with2(`eval_share = ${share}\n`));
      assert.equal(said, `env[0].eval_share: a share that leaves a task to train on; ${share} of 2 tasks, which is all of them`); // prettier-ignore
    }
    assert.match(await problems(t, with2('eval_share = 0.1\n')), /env\[0\]\.eval_share: eval_tasks, or an eval_share of at least one task: .*; 0\.1 of 2 tasks, which is none/); // prettier-ignore
    assert.match(await problems(t, with2('', evaluation)), /^env\[0\]\.tasks: eval_tasks, or an eval_share of at least one task: .*; neither$/); // prettier-ignore
    await load(t, with2('eval_share = 0.5\n', evaluation));
    await load(t, with2('eval_tasks = "./tasks.jsonl"\n', evaluation));
  });

  test('what is collected lies below the work folder, and is not too much', async (t) => {
    const collect = (paths: readonly string[]) =>
      `${head}${command}${tasks}${score}collect = ${JSON.stringify(paths)}\n`;
    const said = await problems(t, collect(['/etc/passwd', 'a/../../x', 'fine.json', 'a\0b']));
    assert.match(said, /^env\[0\]\.score\.collect\[0\]: a path below the work folder, such as "out\/report\.json"; "\/etc\/passwd"$/m); // prettier-ignore
    assert.match(said, /collect\[1\]: .*x"$/m);
    assert.match(said, /collect\[3\]: /);
    assert.doesNotMatch(said, /collect\[2\]/);
    const many = Array.from({ length: 65 }, (_, i) => `${i}.json`);
    assert.match(await problems(t, collect(many)), /score\.collect: a list of at most 64 paths below the work folder/);
    await load(t, collect(many.slice(1)));
  });

  test('files of sandboxes come from outside the project by an absolute path alone, which is told', async (t) => {
    const elsewhere = await mkdtemp(path.join(tmpdir(), 'ratchet-elsewhere-'));
    t.after(() => rm(elsewhere, { recursive: true, force: true }));
    await writeFile(path.join(elsewhere, 'hidden.py'), 'x');
    const files = (where: string) => `${head}${command}${tasks}${score}files = ${JSON.stringify(where)}\n`;
    const up = `../${path.basename(elsewhere)}`;
    assert.match(await problems(t, files(up)), /^env\[0\]\.score\.files: a file or a folder in the project, or beside or below the config; .*which leads to .*ratchet-elsewhere-/); // prettier-ignore
    const folder = await folderWith(t, files('./away'), '{"prompt": "x"}');
    await symlink(elsewhere, path.join(folder, 'away'));
    const led = await loadRunConfig('run.toml', { projectFolder: folder }).catch((error: unknown) => error);
    assert.match(String(led), /"\.\/away", which leads to .*name them by their absolute path/s);
    const { loaded } = await load(t, files(elsewhere));
    assert.match(loaded.warnings.join('\n'), new RegExp(`get files from outside the project: ${elsewhere}`));
    assert.ok(namedIn(loaded.spec).includes(elsewhere));
    const { loaded: within } = await load(t, files('./agent.py'));
    assert.doesNotMatch(within.warnings.join('\n'), /outside/);
  });

  test('a folder that holds the whole project is no folder of a sandbox', async (t) => {
    const said = await problems(t, `${head}${command}${tasks}[env.sandbox]\nfiles = "."\n${score}`);
    assert.match(said, /env\[0\]\.sandbox\.files: .*which holds the whole project, with its runs/);
  });

  test('a deadline that comes after that of its rollout is refused', async (t) => {
    const own = 'timeout = 10\nturn_timeout = 50\ntool_timeout = 10\n';
    const sandbox = '[env.sandbox]\nsetup = ["true"]\nsetup_timeout = 11\n';
    const said = await problems(
      t,
      `${head}${own}${command}${tasks}${sandbox}${score}[env.budget]\nwall_seconds = 100\n`,
    );
    const late = 'at most timeout (10), which ends the rollout before it';
    assert.deepEqual(said.split('\n'), [
      `env[0].turn_timeout: ${late}; 50`,
      `env[0].sandbox.setup_timeout: ${late}; 11`,
      `env[0].budget.wall_seconds: ${late}; 100`,
    ]);
    const timers = await problems(t, `${head}timeout = 2073601\ntool_timeout = 1e300\n${command}${tasks}${score}timeout = 1e308\n`); // prettier-ignore
    for (const key of [
      'timeout: at most 2073600 seconds, 24 days; 2073601',
      'tool_timeout: at most 2073600',
      'score.timeout: at most 2073600',
    ])
      // prettier-ignore
      assert.ok(timers.includes(`env[0].${key}`), timers);
    const wall = await problems(t, `${head}tool_timeout = 30\n${command}${tasks}${score}[env.budget]\nwall_seconds = 20\n`); // prettier-ignore
    assert.match(wall, /^env\[0\]\.tool_timeout: at most budget\.wall_seconds \(20\), which ends/);
    await load(t, `${head}timeout = 30\n${command}${tasks}${sandbox}${score}[env.budget]\nwall_seconds = 30\n`);
  });

  test('a budget of sandbox seconds allows at least one sandbox, with its score and its end', async (t) => {
    const own = (seconds: number) => `${head}timeout = 60\n${command}${tasks}${score}timeout = 40\n[env.budget]\nsandbox_seconds = ${seconds}\n`; // prettier-ignore
    assert.match(await problems(t, own(70)), /^env\[0\]\.budget\.sandbox_seconds: more than 70: scoring may take 40 \(score\.timeout\), and ending a sandbox 30; 70$/); // prettier-ignore
    await load(t, own(71));
    const run = (limit: number, more = 'timeout = 60\n') => `${head}${more}${command}${tasks}${score}timeout = 40\n[budget]\nsandbox_seconds = ${limit}\n`; // prettier-ignore
    assert.match(await problems(t, run(219)), /^budget\.sandbox_seconds: at least 220: one sandbox may be there for so long .*; 219$/); // prettier-ignore
    await load(t, run(220));
    assert.match(await problems(t, run(20_000, '')), /at least 21760: .*or a smaller timeout of the environment/);
  });

  test('other models have a bound of their answers, and a price, where a budget limits tokens or money', async (t) => {
    const model = '[[env.models]]\nname = "helper"\nbase_url = "http://localhost:1/v1"\n';
    const budget = '[budget]\ntokens = 1000000\nmoney = 5\n[cost]\nprompt = 1\ncompletion = 1\n';
    const said = await problems(t, `${head}${command}${tasks}${model}${score}${budget}`);
    assert.deepEqual(said.split('\n'), [
      'env[0].models[0].max_tokens: most tokens of an answer, since budget.tokens is limited: a call is reserved before it is made; nothing', // prettier-ignore
      'env[0].models[0].name: a [[cost.models]] with name = "helper", 0 where it costs nothing: budget.money is limited; no price', // prettier-ignore
    ]);
    const priced = '[[cost.models]]\nname = "helper"\nprompt = 1\ncompletion = 2\n';
    const { loaded } = await load(t, `${head}${command}${tasks}${model}max_tokens = 512\n${score}${budget}${priced}`);
    assert.equal(loaded.spec.environments[0]!.program!.models[0]!.maxTokens, 512);
  });

  test('a limit of its own is named as everywhere', async (t) => {
    const model = '[[env.models]]\nname = "helper"\nbase_url = "http://localhost:1/v1"\n';
    const said = await problems(t, `${head}${command}${tasks}${model}${score}[env.budget]\ntokens = 1000\nmoney = 5\n[cost]\nprompt = 1\ncompletion = 1\n`); // prettier-ignore
    assert.match(said, /since env\[0\]\.budget\.tokens is limited/);
    assert.match(said, /env\[0\]\.budget\.money is limited; no price/);
  });

  test('a number that no machine bears, and nobody means, is refused with the largest one', async (t) => {
    const huge = '9_007_199_254_740_991';
    const refused: Readonly<Record<string, readonly [text: string, expected: string]>> = {
      'sandbox.memory_mb': [`[env.sandbox]\nmemory_mb = ${huge}\n`, 'an integer from 16 to 4194304'],
      'sandbox.disk_mb': [`[env.sandbox]\ndisk_mb = ${huge}\n`, 'an integer from 1 to 16777216'],
      'sandbox.quota': [`[env.sandbox]\nquota = ${huge}\n`, 'an integer from 1 to 100000'],
      'sandbox.cpus': ['[env.sandbox]\ncpus = 1e-7\n', 'a number from 0.01 to 1024'],
      'sandbox.cost_per_hour': ['[env.sandbox]\ncost_per_hour = 1e300\n', 'a number ≥ 0 and ≤ 1000000'],
      'sandbox.port': ['[env.sandbox]\nport = 65_536\n', 'an integer from 1 to 65535'],
      'sandbox.setup_timeout': ['[env.sandbox]\nsetup_timeout = 1e12\n', 'at most 2073600 seconds, 24 days'],
      'resume.every': [`[env.resume]\ncommand = ["a"]\nevery = ${huge}\n`, 'an integer from 1 to 1000000'],
      'models[0].max_tokens': [`[[env.models]]\nname = "h"\nbase_url = "http://localhost:1/v1"\nmax_tokens = ${huge}\n`, 'an integer from 1 to 16777216'], // prettier-ignore
      'budget.tokens': [`[env.budget]\ntokens = ${huge}\n`, 'an integer from 1 to 1000000000000000'],
      'budget.tool_calls': [`[env.budget]\ntool_calls = ${huge}\n`, 'an integer from 0 to 1000000000000'],
      'budget.sandbox_seconds': ['[env.budget]\nsandbox_seconds = 1e300\n', 'a number > 0 and ≤ 1000000000000'],
      'budget.wall_seconds': ['[env.budget]\nwall_seconds = 1e300\n', 'a number > 0 and ≤ 1000000000'],
    };
    for (const [at, [text, expected]] of Object.entries(refused)) {
      const said = await problems(t, `${head}${command}${tasks}${text}${score}`);
      assert.ok(said.includes(`env[0].${at}: ${expected}; `), said);
    }
    const ofJudge = await problems(t, `${head}${command}${tasks}[env.score.judge]\nbase_url = "http://localhost:1/v1"\nmodel = "j"\nprompt = "p"\nmax_tokens = ${huge}\n`); // prettier-ignore
    assert.match(ofJudge, /^env\[0\]\.score\.judge\.max_tokens: an integer from 1 to 16777216; /);
    const ofScore = await problems(t, `${head}${command}${tasks}${score}timeout = 1e12\n`);
    assert.equal(ofScore, 'env[0].score.timeout: at most 2073600 seconds, 24 days; 1000000000000');
  });

  test('sandboxes that stand ready are no more than the quota, and a snapshot is taken before the last turn', async (t) => {
    const warm = await problems(t, `${head}${command}${tasks}[env.sandbox]\nquota = 4\nwarm = 5\n${score}`);
    assert.equal(warm, 'env[0].sandbox.warm: at most quota (4): those that stand ready count in it; 5');
    const resume = (every: number) => `${head}max_turns = 4\n${command}${tasks}[env.resume]\ncommand = ["a"]\nevery = ${every}\n${score}`; // prettier-ignore
    assert.match(await problems(t, resume(4)), /^env\[0\]\.resume\.every: less than max_turns \(4\)/);
    await load(t, resume(3));
  });

  test('code that is not there is refused, and nothing is said of its digest', async (t) => {
    const folder = await folderWith(
      t,
      `${head}${command}${tasks}[env.score]\nfunction = "./gone.ts"\n`,
      '{"prompt": "x"}',
    );
    const { problems: found, warnings } = await examineRunFile('run.toml', { projectFolder: folder });
    assert.ok(found.some(({ path: at }) => at === 'env[0].score.function'));
    assert.doesNotMatch(warnings.join('\n'), /gone\.ts|undefined/);
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
