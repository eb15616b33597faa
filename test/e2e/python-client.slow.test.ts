/**
 * The Python package `ratchet-rl`, built into a wheel and installed into an empty virtual environment: what its README
 * shows, against a real run. Without Python 3.11 or a package index the tests are skipped with a message.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { readRun } from '../../client/index.mjs';
import { whoAsked } from '../../core/rl/changes.ts';
import { readChanges } from '../../runs/changes.ts';
import { openRunStore } from '../../store/index.ts';
import { storedForms } from '../../runs/forms/stored-forms.ts';
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
    await run(python, ['-m', 'pip', 'install', '--quiet', `${path.join(room, 'wheels', wheel!)}[pandas]`]);
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
async function tell(script: string): Promise<unknown> {
  const file = path.join(room, 'script.py');
  await writeFile(file, `import json\nfrom ratchet_rl import *\n${script}`);
  const env = { ...process.env, TEMPORAL_ADDRESS: '' };
  const { stdout } = await run(python, [file], { cwd: project.folder, env, maxBuffer: 2 ** 26 });
  return JSON.parse(stdout);
}

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
  const { changes } = await readChanges(openRunStore(`file://${path.join(project.folder, 'outputs')}/`, 'words'));
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
]))
`);
  const said = told as readonly string[];
  assert.match(said[0]!, /^ConfigInvalid The run typo did not finish: [^]*npx ratchet-rl check FILE/);
  assert.equal(said[1], said[0]);
  assert.match(said[2]!, /^RunNotFound There is no run nobody/);
  assert.match(said[3]!, /^ConfigInvalid none\.toml: expected a run file/);
  assert.match(said[4]!, /^ServerUnavailable Nothing of Ratchet is ready in \/\. .*ratchet-rl dev/);
  assert.match(said[5]!, /^RunNotFound .*holds no run\.json/);
  assert.match(said[6]!, /^ServerUnavailable No Temporal server answers at 127\.0\.0\.1:9/);
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
