/**
 * A run on environments written with verifiers, as their authors write them: the embedded model trains on them, in a stack
 * whose rollout worker and Python processes are killed meanwhile.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { installEnvironment } from '../../cli/python-environments/install.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { eventually, until } from '../eventually.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';

const packages = {
  /** One answer; a row is enough to score it. */
  letters: `
import verifiers as vf
from datasets import Dataset

def load_environment(examples: int = 12):
    def share_of_letters(completion, **kwargs) -> float:
        said = completion[-1]["content"]
        return sum(c.isalpha() for c in said) / max(1, len(said))

    rows = Dataset.from_list([{"question": f"q{i}", "answer": str(i)} for i in range(examples)])
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[share_of_letters]))
`,
  /** Two turns, a state of its own, and a reward that compares a group: scored where it is generated. */
  contest: `
import asyncio
import verifiers as vf
from datasets import Dataset

class ContestEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["heard"] = set()
        return state

    async def env_response(self, messages, state, **kwargs):
        await asyncio.sleep(1.5)  # longer than the steps in which it is struck later: whoever is killed has something in flight
        state["heard"].add(len(messages))
        return [{"role": "user", "content": "on"}]

def load_environment():
    def longest_wins(states, **kwargs) -> list[float]:
        sizes = [sum(len(m["content"]) for m in s["completion"] if m["role"] == "assistant") for s in states]
        return [1.0 if size == max(sizes) else 0.0 for size in sizes]

    rows = Dataset.from_list([{"question": f"go {i}", "answer": ""} for i in range(6)])
    return ContestEnv(dataset=rows, rubric=vf.Rubric(funcs=[longest_wins]), max_turns=2)
`,
};

const run = `
model = "preset:chars-0.4m"
max_steps = 5
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
[sampling]
max_tokens = 8
[[env]]
id = "letters"
[[env]]
id = "contest"
[eval]
interval = 5
[[eval.env]]
id = "letters"
args = { examples = 4 }
rollouts_per_example = 2
`;

const project = await openSmallProject({ 'undisturbed.toml': run, 'disturbed.toml': run });
after(() => project.close());
const why = await install(project);

/** null when everything is there; else why it cannot be, in one line. */
async function install({ folder }: SmallProject): Promise<string | null> {
  try {
    for (const [name, code] of Object.entries(packages)) {
      const place = path.join(folder, 'environments', name);
      mkdirSync(place, { recursive: true });
      writeFileSync(path.join(place, `${name}.py`), code);
      writeFileSync(path.join(place, 'pyproject.toml'), pyproject(name));
      await installEnvironment(name, { projectFolder: folder, log: () => undefined });
    }
    return null;
  } catch (error) {
    return `verifiers environments cannot be installed here: ${(error as Error).message.split('\n')[0]}`;
  }
}

function pyproject(name: string): string {
  return `[project]
name = "${name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["verifiers>=0.3.1,<0.4"]
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[tool.setuptools]
py-modules = ["${name}"]
`;
}

let undisturbed: RunSummary;

test(
  'a run trains on environments written with verifiers, and keeps its rollouts as verifiers writes them',
  { skip: why ?? false },
  async () => {
    undisturbed = await start('undisturbed').then((handle) => handle.result());
    assert.equal(undisturbed.step, 5);
    assert.ok(undisturbed.ledger.isSound, JSON.stringify(undisturbed.ledger));
    assert.ok((undisturbed.ledger.counts['trained'] ?? 0) > 0);

    execFileSync(
      process.execPath,
      [
        path.join(repositoryFolder, 'cli/ratchet.mjs'),
        'rollouts',
        'undisturbed',
        '--export',
        'outputs/undisturbed/exported',
      ],
      { cwd: project.folder },
    );
    const all = rowsOf('undisturbed', 'exported/evals', (name) => name.includes('.groups_'));
    const { counts } = undisturbed.ledger;
    const issued = Object.values(counts).reduce((sum, count) => sum + count, 0);
    assert.equal(all.length, issued * 4);
    const contest = all.find(({ metrics }) => 'longest_wins' in metrics)!;
    assert.deepEqual(
      contest.completion.map(({ role }) => role),
      ['assistant', 'user', 'assistant'],
    );
    assert.equal(contest.reward, contest['longest_wins']);
    assert.equal(readByVerifiers('undisturbed', 'exported/evals'), all.length);
    const evaluated = rowsOf('undisturbed', 'evals', (name) => name === 'step_5');
    assert.equal(evaluated.length, 4 * 2);
  },
);

test(
  'killed Python processes and a killed rollout worker lose nothing: the same ledger, the same weights',
  { skip: why ?? false },
  async () => {
    const handle = await start('disturbed');
    await untilCommitted('disturbed', 1);
    // Struck until it was in the middle of a rollout: at any other moment nothing is lost, and nothing is said.
    const struck = /Python process .* \(signal SIGKILL\) while it worked on \d+ request\(s\) \(rollout\)/;
    const said = () => readFileSync(path.join(project.folder, '.ratchet/logs/rollout-worker.log'), 'utf8');
    let waitMs = 200;
    const strike = async () => {
      const children = pythonOf(project.stack.pids()['rollout worker']!);
      if (children.length === 0) return false;
      await delay(waitMs); // longer each time: a new process imports for a second or two first
      waitMs += 400;
      for (const pid of children) if (isAlive(pid)) process.kill(pid, 'SIGKILL');
      await delay(300);
      return struck.test(said());
    };
    await eventually('a rollout whose Python process was killed', strike, (is) => is);
    await eventually(
      'new Python processes',
      async () => pythonOf(project.stack.pids()['rollout worker']!).length,
      (n) => n > 0,
    );
    const worker = project.stack.pids()['rollout worker']!;
    const orphans = pythonOf(worker);
    assert.ok(orphans.length > 0, 'new Python processes have taken the place of those that were killed');
    process.kill(worker, 'SIGKILL');
    const summary = await handle.result();
    assert.equal(summary.step, 5);
    assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
    assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
    assert.equal(summary.policyDigest, undisturbed.policyDigest, 'the same bits as the undisturbed run');
    const left = orphans.filter((pid) => isAlive(pid));
    assert.deepEqual(left, [], 'Python ends with the worker that started it');
  },
);

async function start(name: string) {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });
}

async function untilCommitted(name: string, step: number): Promise<void> {
  await until(`step ${step} of ${name}`, () => project.commit(name, step));
}

/** The Python children of a process. */
function pythonOf(worker: number): number[] {
  return execFileSync('ps', ['-A', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' })
    .split('\n')
    .map((line) => /^ *(\d+) +(\d+) (.*)$/.exec(line))
    .flatMap((found) =>
      found && Number(found[2]) === worker && found[3]!.includes('ratchet_bridge') ? [Number(found[1])] : [],
    );
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

interface Row {
  readonly reward: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly completion: readonly { readonly role: string }[];
  readonly [column: string]: unknown;
}

/** Number of rows that verifiers itself finds below a folder of `ENV--RUN/ID`, each with what a continuation needs. */
function readByVerifiers(name: string, below: string): number {
  const code = `
import sys, pathlib
from verifiers.utils.path_utils import is_valid_eval_results_path
from verifiers.utils.save_utils import load_outputs
ids = [place for env in pathlib.Path(sys.argv[1]).iterdir() for place in env.iterdir()]
assert all(is_valid_eval_results_path(place) for place in ids)
print(sum(len(load_outputs(place)) for place in ids))`;
  const python = path.join(project.folder, '.ratchet/python/v0-0.3.1/bin/python');
  const root = path.join(project.folder, 'outputs', name, below);
  return Number(execFileSync(python, ['-c', code, root], { encoding: 'utf8' }));
}

/** The rows of the folders `ENV--RUN/ID` whose id is wanted; each has its metadata. */
function rowsOf(name: string, below: string, isWanted: (id: string) => boolean): Row[] {
  const root = path.join(project.folder, 'outputs', name, below);
  return readdirSync(root).flatMap((environment) =>
    readdirSync(path.join(root, environment))
      .filter(isWanted)
      .flatMap((id) => {
        const folder = path.join(root, environment, id);
        assert.ok(existsSync(path.join(folder, 'metadata.json')), folder);
        const lines = readFileSync(path.join(folder, 'results.jsonl'), 'utf8').trim().split('\n');
        return lines.map((line) => JSON.parse(line) as Row);
      }),
  );
}
