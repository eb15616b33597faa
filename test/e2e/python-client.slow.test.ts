/**
 * The Python package `ratchet-rl`, built into a wheel and installed into an empty virtual environment: what its README
 * shows, against a real run; runs in a bucket and encrypted payloads; its types. Without Python 3.11 or a package index the tests are skipped with a message.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { access, cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { readRun } from '../../client/index.mjs';
import { whoAsked } from '../../core/rl/changes.ts';
import { grantNamed } from '../../load/grants/grant.ts';
import { readChanges } from '../../runs/changes.ts';
import { openRunStore } from '../../store/index.ts';
import { skipWithoutGateway, startGateway } from '../store/s3-gateway.ts';
import { storedForms } from '../../runs/forms/stored-forms.ts';
import { eventually } from '../eventually.ts';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from './small-run.ts';

const run = promisify(execFile);
const source = path.join(repositoryFolder, 'python/ratchet-rl');

let room: string;
let python: string;
let why: string | null = null;
let project: SmallProject;

before(async () => {
  room = await mkdtemp(path.join(os.tmpdir(), 'ratchet-python-'));
  python = path.join(room, 'venv/bin/python');
  try {
    await run('python3', ['-c', 'import sys; assert sys.version_info >= (3, 11)']);
    await run('python3', ['-m', 'venv', path.join(room, 'venv')]);
    await run(python, ['-m', 'pip', 'wheel', '--quiet', '--no-deps', '--wheel-dir', path.join(room, 'wheels'), source]);
    const [wheel] = await readdir(path.join(room, 'wheels'));
    const extras = '[pandas,s3,encryption]';
    await run(python, ['-m', 'pip', 'install', '--quiet', `${path.join(room, 'wheels', wheel!)}${extras}`]);
  } catch (error) {
    const { stderr = '' } = error as { readonly stderr?: string };
    if (
      !/AssertionError|ENOENT|No matching distribution|Could not find a version|ConnectionError/.test(
        `${String(error)}${stderr}`,
      )
    )
      throw error;
    why = `the wheel cannot be built and installed here: ${stderr.slice(-300)}`;
    return;
  }
  project = await openSmallProject({ 'words.toml': smallRun });
});

after(async () => {
  await project?.close();
  await rm(room, { recursive: true, force: true });
});

/** What a script prints as JSON. */
async function tell(script: string, cwd = project.folder, variables: NodeJS.ProcessEnv = {}): Promise<unknown> {
  const file = path.join(room, 'script.py');
  await writeFile(file, `import json\nfrom ratchet_rl import *\n${script}`);
  const env = { ...process.env, TEMPORAL_ADDRESS: '', ...variables };
  const { stdout } = await run(python, [file], { cwd, env, maxBuffer: 2 ** 26 });
  return JSON.parse(stdout);
}

/** Prints all that is stored of the run at `place`. */
const toldWhole = (place: string): string => `
stored = read_run(${JSON.stringify(place)})
rollouts = stored.rollouts()
print(json.dumps([stored.name, stored.steps(), [{**row, "path": None} for row in stored.evaluations()], rollouts, stored.rollouts(step=1)]))
`;

function isSkipped(t: TestContext): boolean {
  if (why !== null) t.skip(why);
  return why !== null;
}

test('a run is started, steered and waited for; its folder is read as the TypeScript client reads it', async (t) => {
  if (isSkipped(t)) return;
  const told = await tell(`
run = start_run("words.toml", overrides={"max_steps": 200})
first = run.status()
for event in run.events():
    if event.kind == "step" and event.step >= 2:
        break
run.pause("to look")
paused = run.status()
same = attach("words")
try:
    same.set(learning_rate=2)
except RatchetError as error:
    refused = [error.code, str(error)]
try:
    start_run("words.toml")
except RatchetError as error:
    taken = str(error)
said = same.set(max_steps=paused.step + 3)
same.resume()
result = run.wait()
stored = run.read()
frame = stored.steps().to_pandas()
print(json.dumps({
    "max_steps": first.max_steps, "paused": paused.paused_because, "at": paused.step, "refused": refused, "taken": taken,
    "said": said, "step": result.step, "sound": result.ledger["isSound"], "phase": run.status().phase,
    "rewards": int(frame["train/reward"].count()), "last": int(frame.index[-1]),
    "rollouts": len(stored.rollouts().to_pandas()),
}))
`);
  const found = told as Readonly<Record<string, unknown>>;
  const last = Number(found['at']) + 3;
  assert.deepEqual(
    [
      found['max_steps'],
      found['paused'],
      found['step'],
      found['sound'],
      found['phase'],
      found['last'],
      found['rewards'],
    ],
    [200, 'to look', last, true, 'finished', last, last],
  );
  assert.match(String(found['said']), /max_steps 200 → /);
  assert.match(String(found['taken']), /The run words is running/);
  assert.match(String(found['refused']), /ConfigInvalid,words: nothing changed\. learning_rate: expected/);

  const stored = await readRun(path.join(project.folder, 'outputs/words'));
  const both = await tell(`
stored = read_run("outputs/words")
print(json.dumps({"steps": stored.steps(), "evaluations": stored.evaluations(), "rollouts": stored.rollouts()}))
`);
  const { steps, evaluations, rollouts } = both as Readonly<Record<string, readonly Record<string, unknown>[]>>;
  assert.deepEqual(steps, await stored.steps());
  assert.deepEqual(
    evaluations?.map(({ step, environment, variant, reward }) => [step, environment, variant, reward]),
    (await stored.evaluations()).map(({ step, environment, variant, reward }) => [step, environment, variant, reward]),
  );
  const expected = [];
  for await (const one of stored.rollouts()) expected.push(one);
  assert.equal(rollouts?.length, expected.length);
  assert.deepEqual(
    rollouts?.map(({ step, group, index, reward, turns }) => [step, group, index, reward, promptsOf(turns)]),
    expected.map(({ step, group, index, reward, turns }) => [
      step,
      group,
      index,
      reward,
      turns.map(({ text, promptTokenIds, logprobs }) => [text, promptTokenIds, logprobs]),
    ]),
  );
});

function promptsOf(turns: unknown): unknown {
  return (turns as readonly Record<string, unknown>[]).map((turn) => [
    turn['text'],
    turn['prompt_token_ids'],
    turn['logprobs'],
  ]);
}

test('who asked is recorded as the user of the system; where there is a file of roles nothing is changed from here', async (t) => {
  if (isSkipped(t)) return;
  const login = `${os.userInfo().username}@${os.hostname()}`;
  const store = `file://${path.join(project.folder, 'outputs')}/`;
  const { changes } = await readChanges({ kind: 'run', name: 'words', store });
  assert.deepEqual(
    changes.map((change) => `${whoAsked(change)}: ${change.what}`),
    ['start', 'pause', 'set', 'resume'].map((what) => `${login}: ${what}`),
  );
  const roles = path.join(project.folder, 'roles.toml');
  await writeFile(roles, '[users.eve]\nrole = "admin"\n');
  try {
    const told = await tell(`
codes = []
for ask in [lambda: attach("words").pause(), lambda: start_run("words.toml")]:
    try:
        ask()
    except RatchetError as error:
        codes.append(error.code)
print(json.dumps(codes))
`);
    assert.deepEqual(told, ['NotAllowed', 'NotAllowed']);
  } finally {
    await rm(roles);
  }
});

test('errors say what to do: a wrong file, no run, no processes', async (t) => {
  if (isSkipped(t)) return;
  await writeFile(path.join(project.folder, 'typo.toml'), 'model = "preset:reverse-text-0.2m"\nbatch_sise = 3\n');
  const told = await tell(`
def refusal(work):
    try:
        work()
    except RatchetError as error:
        return f"{error.code} {error}"
typo = start_run("typo.toml")
print(json.dumps([
    refusal(typo.wait), refusal(typo.status), refusal(lambda: attach("nobody")), refusal(lambda: start_run("none.toml")),
    refusal(lambda: attach("words", folder="/")), refusal(lambda: read_run("outputs/none")),
    refusal(lambda: attach("words", address="127.0.0.1:9")),
    refusal(lambda: start_run("words.toml", name="My Run")), refusal(lambda: attach("")), refusal(lambda: read_run("outputs")),
    refusal(lambda: read_run("gs://runs/words")), refusal(lambda: read_run("outputs/words").rollouts(environment="revers-text")),
    refusal(lambda: start_run("words.toml", name="other", overrides={"max_steps": None})),
    refusal(lambda: attach("words").set(learning_rate=float("nan"))),
]))
`);
  const said = told as readonly string[];
  assert.match(said[0]!, /^ConfigInvalid The run typo did not finish: [^]*npx ratchet-rl check FILE/);
  assert.equal(said[1], said[0]);
  assert.match(said[2]!, /^RunNotFound There is no run nobody/);
  assert.match(said[3]!, /^ConfigInvalid none\.toml: expected a run file/);
  assert.match(said[4]!, /^ServerUnavailable Nothing of Ratchet is ready in \/\. .*ratchet-rl dev/);
  assert.match(said[5]!, /^RunNotFound .*holds no run\.json/);
  assert.match(said[6]!, /^ServerUnavailable No Temporal server answers at 127\.0\.0\.1:9 \(Connection refused\)\. /);
  assert.match(said[7]!, /^ConfigInvalid expected a run's name .*, received 'My Run'\.$/);
  assert.match(said[8]!, /^ConfigInvalid expected a run's name .*, received ''\.$/);
  assert.match(said[9]!, /^RunNotFound .*holds no run\.json\. Runs in .*outputs: .*words/);
  assert.match(said[10]!, /^ConfigInvalid gs:\/\/runs\/words: expected a run's folder/);
  assert.match(said[11]!, /^ConfigInvalid words has no environment 'revers-text'\. It has: reverse-text\.$/);
  assert.match(said[12]!, /^ConfigInvalid max_steps: expected a number, .*, received None\.$/);
  assert.match(said[13]!, /^ConfigInvalid learning_rate: expected a number, .*, received nan\.$/);
});

test("a notebook's own: NumPy's numbers are settings, columns keep apart, and what is missing is named with its command", async (t) => {
  if (isSkipped(t)) return;
  const told = await tell(`
import sys
import numpy
run = start_run("words.toml", name="numpy", overrides={"max_steps": numpy.int64(1), "learning_rate": numpy.float64(1e-3)})
step = run.wait().step
frame = Rows([{"reward": 1.0, "metrics": {"reward": 0.5, "exact": 1.0}}]).to_pandas()
sys.modules["pandas"] = None
try:
    run.rollouts(step=1).to_pandas()
except RatchetError as error:
    refused = str(error)
print(json.dumps([step, frame.iloc[0].to_dict(), refused]))
`);
  const [step, row, refused] = told as readonly unknown[];
  assert.deepEqual([step, row], [1, { reward: 1, 'metrics/reward': 0.5, exact: 1 }]);
  assert.match(String(refused), /^pandas is not installed\. In a notebook: %pip install pandas;/);
});

test('a server that is stopped while a run is looked at is said to be silent, and the run is read without it', async (t) => {
  if (isSkipped(t)) return;
  const own = await openSmallProject({ 'words.toml': smallRun });
  t.after(() => own.close());
  const ready = path.join(own.folder, 'ready');
  const telling = tell(
    `
import os, time
run = start_run("words.toml", overrides={"max_steps": 1})
run.wait()
open(${JSON.stringify(ready)}, "w").close()
while os.path.exists(${JSON.stringify(ready)}):
    time.sleep(0.1)
def refusal(work):
    try:
        work()
    except RatchetError as error:
        return f"{error.code} {error}"
print(json.dumps([refusal(run.status), refusal(run.pause), len(read_run(${JSON.stringify(path.join(own.folder, 'outputs/words'))}).rollouts(step=1))]))
`,
    own.folder,
  );
  await eventually('the run has ended', () => access(ready).then(() => true, () => false), Boolean); // prettier-ignore
  await own.stack.stop();
  await rm(ready);
  const [status, pause, rollouts] = (await telling) as readonly unknown[];
  for (const said of [status, pause])
    assert.match(String(said), /^ServerUnavailable The Temporal server does not answer/);
  assert.ok(Number(rollouts) > 0);
});

test('a run in a bucket is read as the folder that it is a copy of, with the lines of its logs that are parts', async (t) => {
  if (isSkipped(t)) return;
  if (skipWithoutGateway) return t.skip(skipWithoutGateway);
  const folder = path.join(project.folder, 'outputs/words');
  const expected = (await tell(toldWhole('outputs/words'))) as readonly unknown[];
  assert.ok((expected[1] as readonly unknown[]).length > 2 && (expected[2] as readonly unknown[]).length > 0);
  const gateway = await startGateway();
  t.after(() => gateway.remove());
  const endpoint = `http://127.0.0.1:${gateway.port}`;
  grantNamed(process.cwd(), [`store s3://runs ${endpoint}`]);
  const store = openRunStore(`s3://runs/python/?endpoint=${encodeURIComponent(endpoint)}`, 'words');
  const names = await readdir(folder, { recursive: true, withFileTypes: true });
  for (const entry of names.filter((one) => one.isFile())) {
    const file = path.join(entry.parentPath, entry.name);
    const key = path.relative(folder, file);
    if (key === 'metrics.jsonl')
      for (const line of linesOf(await readFile(file, 'utf8'))) await store.append(key, line);
    else await store.putFile(key, file);
  }
  assert.ok(
    (await readdir(gateway.bucketFolder, { recursive: true })).some((name) => name.includes('metrics.jsonl.tail')),
  );
  const place = `s3://runs/python/words?endpoint=${endpoint}`;
  assert.deepEqual(await tell(toldWhole(place)), expected);
  const told = await tell(`
def refusal(place):
    try:
        read_run(place)
    except RatchetError as error:
        return f"{error.code} {error}"
print(json.dumps([refusal(${JSON.stringify(place.replace('words', 'none'))}), refusal(${JSON.stringify(place.replace('//runs', '//others'))}), read_run(${JSON.stringify(place)}).uri]))
`);
  const [none, others, uri] = told as readonly string[];
  assert.match(none!, /^RunNotFound There is no run in s3:\/\/runs\/python\/none\/: it holds no run\.json/);
  assert.match(
    others!,
    /^StoreUnavailable GetObject of s3:\/\/others\/python\/words\/run\.json failed: .*Expected credentials/s,
  );
  assert.equal(uri, 's3://runs/python/words/');

  // As `aws s3 sync` copies it: the tail stays a folder of parts.
  const copy = path.join(room, 'copies/words');
  await cp(folder, copy, { recursive: true });
  const log = path.join(copy, 'metrics.jsonl');
  const lines = linesOf(await readFile(log, 'utf8'));
  const [body, rest] = [lines.slice(0, 2).join(''), lines.slice(2)];
  await writeFile(log, body);
  await mkdir(`${log}.tail`);
  let at = Buffer.byteLength(body);
  await writeFile(path.join(`${log}.tail`, '0'.padStart(15, '0')), 'a part that the body has already');
  for (const line of rest) {
    await writeFile(path.join(`${log}.tail`, String(at).padStart(15, '0')), line);
    at += Buffer.byteLength(line);
  }
  assert.deepEqual(await tell(toldWhole(copy)), expected);
});

function linesOf(text: string): string[] {
  return text
    .trimEnd()
    .split('\n')
    .map((line) => `${line}\n`);
}

test('payloads that are encrypted are those of Ratchet, in both directions; another key says so', async (t) => {
  if (isSkipped(t)) return;
  const key = randomBytes(32).toString('base64');
  const own = await openSmallProject({ 'words.toml': smallRun }, {}, false, { RATCHET_PAYLOAD_KEY: key });
  t.after(() => own.close());
  const asks = `
run = start_run("words.toml", overrides={"max_steps": 1})
try:
    run.set(learning_rate=2)
except RatchetError as error:
    refused = str(error)
ended = run.wait()
print(json.dumps([refused, ended.step, run.status().phase]))
`;
  const told = await tell(asks, own.folder, { RATCHET_PAYLOAD_KEY: key });
  const [refused, ...rest] = told as readonly unknown[];
  assert.match(String(refused), /learning_rate: expected/, 'also the words of a failure');
  assert.deepEqual(rest, [1, 'finished']);
  const history = await own.client.workflow.getHandle('words').fetchHistory();
  assert.doesNotMatch(JSON.stringify(history), /max_steps|words\.toml/);
  const fails = `
def refusal():
    try:
        return attach("words").status().phase
    except RatchetError as error:
        return f"{error.code} {error}"
print(json.dumps(refusal()))
`;
  const another = randomBytes(32).toString('hex');
  const reads = (variables: NodeJS.ProcessEnv): Promise<unknown> => tell(fails, own.folder, variables);
  assert.match(
    String(await reads({})),
    /^ConfigInvalid This run's history is encrypted with the key [0-9a-f]{12}, and none is set/,
  );
  assert.match(
    String(await reads({ RATCHET_PAYLOAD_KEY: another })),
    /^ConfigInvalid .*this process has [0-9a-f]{12}\./,
  );
  assert.equal(await reads({ RATCHET_PAYLOAD_KEY: `${another} ${key}` }), 'finished');
  assert.match(
    String(await reads({ RATCHET_PAYLOAD_KEY: 'short' })),
    /^ConfigInvalid RATCHET_PAYLOAD_KEY: expected keys of 32 bytes in base64 or hex, got a word of 5 characters/,
  );
});

test('its types are strict, and say what a program does wrong', async (t) => {
  if (isSkipped(t)) return;
  try {
    await run(python, ['-m', 'pip', 'install', '--quiet', 'mypy']);
  } catch (error) {
    return t.skip(`mypy cannot be installed here: ${String(error).slice(-200)}`);
  }
  const check = (...args: string[]) => run(python, ['-m', 'mypy', '--cache-dir', path.join(room, 'mypy'), ...args], { cwd: room }); // prettier-ignore
  await check('--config-file', path.join(source, 'pyproject.toml'), path.join(source, 'ratchet_rl'));
  const program = path.join(room, 'program.py');
  await writeFile(
    program,
    `from ratchet_rl import attach, read_run, start_run
run = start_run("words.toml", overrides={"max_steps": 3})
steps: int = run.wait().step
for event in run.events():
    print(event.text.upper())
worst = sorted(read_run("outputs/words").rollouts(step=3), key=lambda row: float(row["reward"] or 0))
attach("words").set(learning_rate="high")
run.status().steps
`,
  );
  const { stdout } = await check('--strict', program).catch((error: unknown) => error as { readonly stdout: string });
  const errors = stdout.split('\n').flatMap((line) => /^program\.py:(\d+): error: .*\[([\w-]+)\]$/.exec(line)?.slice(1).join(' ') ?? []); // prettier-ignore
  assert.deepEqual(errors, ['7 arg-type', '8 attr-defined'], stdout);
});

test('its version is that of the npm package, and it reads the scored groups that are written', async () => {
  const [project, npm, stored] = await Promise.all(
    [
      path.join(source, 'pyproject.toml'),
      path.join(repositoryFolder, 'package.json'),
      path.join(source, 'ratchet_rl/_stored.py'),
    ].map((file) => readFile(file, 'utf8')),
  );
  const { version } = JSON.parse(npm!) as { readonly version: string };
  assert.match(project!, new RegExp(`^version = "${version}"$`, 'm'));
  assert.match(stored!, new RegExp(`^SCORED_GROUP_VERSION = ${storedForms.scoredGroup.version}$`, 'm'));
});
