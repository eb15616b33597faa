import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { describe, test } from 'node:test';
import { openAgent } from '../../../backends/environments/agent/agent-environment.ts';
import { scoreGroup } from '../../../backends/environments/score-group.ts';
import { sandboxesHere } from '../../../backends/environments/agent/sandboxes-here.ts';
import { RatchetError } from '../../../core/errors.ts';
import type { RolloutPlace, RolloutRecord, RolloutSandboxes } from '../../../backends/environments/types.ts';
import type { ScoredRollout } from '../../../core/rl/rollout/rollout.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { type BudgetLimits, unlimited } from '../../../core/settings/budgets.ts';
import { RolloutBudget } from '../../../play/budget/rollout-budget.ts';
import { SharedBudget } from '../../../play/budget/shared-budget.ts';
import { BudgetLedger } from '../../../runs/budgets/budget-ledger.ts';
import { memoryStore } from '../../stand-ins/memory-store.ts';
import { canSandbox, missingSandbox } from '../sandbox-here.ts';
import { programHere } from './program-here.ts';
import { type Script, scriptedPolicy } from './scripted-policy.ts';

const skip = (await canSandbox()) ? false : missingSandbox;
const place = (more: Partial<RolloutPlace> = {}): RolloutPlace => ({
  group: 'g',
  index: 0,
  size: 1,
  dataset: 'dataset',
  signal: new AbortController().signal,
  ...more,
});

interface Played {
  readonly record: RolloutRecord;
  readonly scored: ScoredRollout;
  readonly policy: ReturnType<typeof scriptedPolicy>;
}

async function play(
  program: AgentProgram,
  script: Partial<Script> = {},
  more: Partial<RolloutPlace> = {},
  given = {},
): Promise<Played> {
  // prettier-ignore
  const environment = await openAgent({ id: 'mine', program, given });
  const policy = scriptedPolicy({ says: () => '2', ...script });
  const example = environment.dataset.at(0);
  const record = await environment.rollout(example, policy, place(more));
  const rollout = { group: 0, index: 0, exampleId: 0, ...record };
  const [scored] = await scoreGroup(environment, example, [rollout], { dataset: 'dataset' });
  return { record, scored: scored!, policy };
}

const answers = 'open("answer", "w").write(ask(task()["prompt"]))';

describe('a program as an environment', { skip }, () => {
  test('it finds its task and the policy, its calls are turns, and a command in its sandbox scores it', async () => {
    const { record, scored } = await play(await programHere({ agent: `assert "answer" not in task()\n${answers}` }));
    assert.equal(record.outcome, 'ok');
    assert.deepEqual([scored.reward, scored.metrics], [1, { exit: 0 }]);
    assert.equal(record.turns.length, 1);
    assert.equal(record.turns[0]!.text, '2');
    assert.ok(record.turns[0]!.tokenIds.length > 0);
    assert.deepEqual(record.turns[0]!.heard, [{ role: 'user', content: 'What is 1 + 1?' }]);
  });

  test('a file of the score takes the place of one of the same path; a folder there fails its judge, and not the run', async () => {
    const tasks = [{ prompt: 'x', files: { 'test.py': 'before' }, score_files: { 'test.py': 'after' } }];
    const score = { command: ['sh', '-c', 'cat test.py && echo && echo 1'] };
    const edits = `open("test.py", "w").write("passes")\n${answers}`;
    const replaced = (await play(await programHere({ agent: edits, tasks, score: { command: ['sh', '-c', 'test "$(cat test.py)" = after && echo 1'] } }))).scored; // prettier-ignore
    assert.deepEqual([replaced.outcome, replaced.reward], ['ok', 1]);
    const folder = `import os\nos.remove("test.py")\nos.makedirs("test.py/x")\n${answers}`;
    const blocked = (await play(await programHere({ agent: folder, tasks, score }))).scored;
    assert.deepEqual([blocked.outcome, blocked.reward], ['judge_failure', null]);
    assert.match(blocked.error!, /A file of the score could not be written: .*test\.py/);
  });

  test('files of the task are there, hidden ones and the answer only when the program has ended', async () => {
    const agent = `import os\nassert sorted(os.listdir(".")) == [".ratchet", "agent.py", "src"], os.listdir(".")\nassert "score_files" not in task()\n${answers}`;
    const tasks = [{ prompt: 'x', answer: '2', files: { 'src/a.txt': 'hello' }, score_files: { 'hidden/t.py': 'pass' } }]; // prettier-ignore
    const program = await programHere({ agent, tasks, score: { command: ['sh', '-c', 'cat src/a.txt && test -f hidden/t.py && echo && echo 0.25'] } }); // prettier-ignore
    const { record, scored } = await play(program);
    assert.deepEqual([record.error, scored.reward], [undefined, 0.25]);
  });

  test('an exit code may be the score; a command that cannot be run is no reward of 0', async () => {
    const scoredBy = async (command: string[], reads: 'output' | 'exit_code' = 'exit_code') =>
      (await play(await programHere({ agent: answers, score: { command, reads } }))).scored;
    assert.equal((await scoredBy(['sh', '-c', 'exit 0'])).reward, 1);
    assert.equal((await scoredBy(['sh', '-c', 'exit 1'])).reward, 0);
    for (const scored of [await scoredBy(['sh', '-c', 'exit 127']), await scoredBy(['sh', '-c', 'kill -9 $$'])]) {
      assert.deepEqual([scored.outcome, scored.reward], ['judge_failure', null]);
    }
    const silent = await scoredBy(['sh', '-c', 'echo no number'], 'output');
    assert.equal(silent.outcome, 'judge_failure');
    assert.match(silent.error!, /printed no reward: expected a number, or \{"reward": …, "metrics": \{…\}\}.*\nstdout: no number/s); // prettier-ignore
    assert.equal((await scoredBy(['sh', '-c', 'echo 1; exit 3'], 'output')).outcome, 'judge_failure');
  });

  test('a function in TypeScript or Python scores what is stored: turns, collected files, exit code', async () => {
    const agent = `${answers}\nopen("log.txt", "w").write("two lines\\nof it")\nsys.exit(4)`;
    const python = `def grade(rollout):\n    print("noise")\n    assert rollout["exit_code"] == 4 and rollout["messages"][-1]["content"] == "2"\n    return {"reward": len(rollout["files"]["log.txt"]), "metrics": {"turns": len(rollout["turns"])}}\n`;
    const ts = `export const grade = ({ files, program, completion, messages }) => ({ reward: files['log.txt'].length + program.exitCode, metrics: { said: Number(completion), messages: messages.length } });\n`;
    const of = async (name: string): Promise<ScoredRollout> => {
      const program = await programHere({ agent, exitCodes: [0, 4], files: { 'grade.py': python, 'grade.mjs': ts } });
      const file = path.join(path.dirname(program.tasks.path), name);
      const score = { ...program.score, command: null, files: null, collect: ['log.txt', 'missing'], function: { path: file, sha256: null, name: 'grade' } }; // prettier-ignore
      return (await play({ ...program, score })).scored;
    };
    const [inPython, inTypeScript] = [await of('grade.py'), await of('grade.mjs')];
    assert.deepEqual([inPython.error, inPython.reward, inPython.metrics], [undefined, 15, { turns: 1 }]);
    assert.deepEqual([inTypeScript.reward, inTypeScript.metrics], [19, { said: 2, messages: 2 }]);
  });

  test('a judge sees the task, the conversation and collected files, and its last number is the reward', async () => {
    const asked: string[] = [];
    const server = createServer((request, response) => {
      void request.toArray().then((parts) => {
        asked.push(Buffer.concat(parts as Buffer[]).toString());
        response.setHeader('content-type', 'application/json');
        response.end(JSON.stringify({ choices: [{ message: { role: 'assistant', content: 'Good.\n0.75' }, finish_reason: 'stop' }] })); // prettier-ignore
      });
    }).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const judge = { baseUrl, model: 'big', apiKeyVar: null, prompt: 'How good is it?', maxTokens: 64 };
    const program = await programHere({ agent: answers, score: { command: null, files: null, judge, collect: ['answer'] } }); // prettier-ignore
    const { scored } = await play(program).finally(() => server.close());
    assert.equal(scored.reward, 0.75);
    for (const part of ['How good is it?', 'What is 1 + 1?', 'File answer']) assert.ok(asked[0]!.includes(part), part);
  });

  test('calls for another model go to its endpoint and are no turns', async () => {
    const server = createServer((request, response) => {
      request.resume();
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ choices: [{ message: { role: 'assistant', content: 'from outside' }, finish_reason: 'stop' }] })); // prettier-ignore
    }).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const agent = `said = call({"model": "helper", "messages": [{"role": "user", "content": "hi"}]})\nassert said == "from outside", said\n${answers}`;
    const models = [{ name: 'helper', baseUrl, model: 'helper-large', apiKeyVar: null }];
    const { record } = await play(await programHere({ agent, models })).finally(() => server.close());
    assert.deepEqual([record.error, record.turns.length, record.program!.calls.others], [undefined, 1, 1]);
  });
});

describe('a program within a budget', { skip }, () => {
  const limited = (limits: Partial<BudgetLimits>, shared: readonly SharedBudget[] = []): RolloutBudget =>
    new RolloutBudget({ ...unlimited, ...limits }, { shared, prices: { policy: null, models: { helper: { prompt: 1, completion: 2 } } } }); // prettier-ignore

  test('its sandbox ends in time, the rollout is truncated and scored, and what was not used is given back', async () => {
    const budget = limited({ sandboxS: 34, money: 1 });
    const pool = { provider: { kind: 'namespace', python: 'python3' }, quota: null, warm: 0, costPerHour: 36 } as const;
    const agent = `${answers}\nimport time\ntime.sleep(1000)`;
    const program = await programHere({ agent, sandbox: { pool }, score: { timeoutS: 2 } });
    const { record, scored } = await play(program, {}, { budget });
    assert.deepEqual([record.outcome, record.overBudget, record.isTimedOut], ['truncated', 'sandboxS', undefined]);
    assert.equal(scored.reward, 1);
    const { sandboxS, money } = budget.left() as Required<ReturnType<RolloutBudget['left']>>;
    assert.ok(sandboxS > 20 && sandboxS < 32, `${sandboxS}`);
    assert.ok(Math.abs(1 - money - (34 - sandboxS) / 100) < 2e-5, `${money}`);
    await assert.rejects(play(program, {}, { budget }), /PromptTooLong: The rollout's budget has \d+ seconds of sandboxes left, and scoring and ending one may take 32/); // prettier-ignore
    assert.equal(budget.left().sandboxS, sandboxS);
  });

  test('no sandbox is taken that the budgets around it do not allow', async () => {
    const store = memoryStore(new Map());
    const shared = new SharedBudget({ ledger: new BudgetLedger(store, ''), of: 'run', limits: { ...unlimited, sandboxS: 100 }, advice: () => 'Raise it.' }); // prettier-ignore
    const program = await programHere({ agent: answers });
    const sandboxes = { ...(await sandboxesHere(program.sandbox)), take: () => assert.fail('one was taken') };
    await assert.rejects(
      play(program, {}, { budget: limited({}, [shared]), sandboxes, timeLimit: { seconds: 60, fate: 'drop' } }),
      /BudgetReached: The run's budget of 100 seconds of sandboxes is used up: 0 .* and the next call may take 240/,
    );
  });

  test('calls for another model are reserved at its price; one that is not left ends the rollout as truncated', async () => {
    const bodies: { readonly max_completion_tokens: number }[] = [];
    const server = createServer((request, response) => {
      void request.toArray().then((parts) => {
        bodies.push(JSON.parse(Buffer.concat(parts as Buffer[]).toString()) as (typeof bodies)[number]);
        response.setHeader('content-type', 'application/json');
        response.end(JSON.stringify({ choices: [{ message: { role: 'assistant', content: 'x' }, finish_reason: 'stop' }], usage: { prompt_tokens: 100, completion_tokens: 50 } })); // prettier-ignore
      });
    }).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const agent = `${answers}\ntry:\n    for i in range(9): call({"model": "helper", "messages": [{"role": "user", "content": "hi"}]})\nexcept urllib.error.HTTPError as error:\n    print(error.code, json.load(error)["error"]["message"])`;
    const models = [{ name: 'helper', baseUrl, model: 'helper-large', apiKeyVar: null, maxTokens: 400 }];
    const program = await programHere({ agent, models });
    const budget = limited({ tokens: 700, money: 1 });
    const { record } = await play(program, {}, { budget });
    assert.deepEqual([record.outcome, record.program!.calls.others], ['truncated', bodies.length]);
    const mosts = bodies.map(({ max_completion_tokens: most }) => most);
    assert.deepEqual(mosts, [mosts[0], mosts[0]! - 150, mosts[0]! - 300], 'less each time, since 150 tokens were used');
    assert.ok(mosts[0]! < 400 && mosts[0]! > 350);
    assert.match(record.program!.stdout, /^400 .*The rollout's budget of 700 tokens is used up: 450 tokens are used/);
    assert.deepEqual(budget.left(), { tokens: 250, money: 1 - (3 * (100 * 1 + 50 * 2)) / 1e6 });
    assert.equal(budget.reached!.over, 'tokens');
    const unbounded = await programHere({ agent, models: [{ ...models[0]!, maxTokens: null }] });
    await assert.rejects(play(unbounded, {}, { budget: limited({ tokens: 5_000 }) }), /ConfigInvalid: Nothing bounds the tokens of an answer of helper: expected max_tokens in its \[\[env\.models\]\]/); // prettier-ignore
    server.close();
  });
});

describe('a program that goes wrong', { skip }, () => {
  const failed = async (
    agent: string,
    more: Partial<Parameters<typeof programHere>[0]> = {},
    at: Partial<RolloutPlace> = {},
    given = {},
  ) =>
    // prettier-ignore
    (await play(await programHere({ agent, ...more }), {}, at, given)).record;

  test('one that never calls the policy fails by name, whatever its exit code', async () => {
    const silent = await failed('print("nothing to do")');
    assert.equal(silent.outcome, 'infra_failure');
    assert.match(silent.error!, /^NeverCalled: the program made no call of the policy.*; it ended with exit code 0\.\nstdout: nothing to do/s); // prettier-ignore
    assert.match((await failed('sys.exit(9)')).error!, /^NeverCalled: .*; it ended with exit code 9\./);
    const absent = await failed('', { command: ['no-such-agent'] });
    assert.match(absent.error!, /; it ended with exit code 127: a program was not found\. Its sandbox has those of .*`sandbox\.setup` put there\.\nstderr: no-such-agent: No such file or directory$/s); // prettier-ignore
  });

  test('an exit code that is not expected fails it, with the end of its output; its turns stay', async () => {
    const record = await failed(`${answers}\nprint("bye", file=sys.stderr)\nsys.exit(3)`);
    assert.deepEqual([record.outcome, record.turns.length, record.program!.exitCode], ['infra_failure', 1, 3]);
    assert.match(record.error!, /^ProgramFailed: the program ended with exit code 3; expected exit code 0\.\nstderr: bye/); // prettier-ignore
    const killed = await failed(`${answers}\nimport signal\nos.kill(os.getpid(), signal.SIGKILL)`);
    assert.match(killed.error!, /^ProgramFailed: the program was ended by SIGKILL|exit code 137/);
  });

  test('100 MB of output are read and not kept', async () => {
    const record = await failed(`${answers}\nfor i in range(1600): sys.stdout.write("x" * 65536)\nprint("the end")`);
    assert.equal(record.outcome, 'ok');
    assert.ok(record.program!.stdout.length < 10_000);
    assert.match(record.program!.stdout, /bytes left out[^]*the end\n$/);
  });

  test('processes that it leaves behind end with its sandbox, and do not hold it up', async () => {
    const agent = `import subprocess\nsubprocess.Popen(["sh", "-c", "trap '' TERM HUP; while :; do sleep 1; done"], start_new_session=True)\n${answers}`;
    const startedAt = performance.now();
    const record = await failed(agent);
    assert.equal(record.outcome, 'ok');
    assert.ok(performance.now() - startedAt < 60_000);
  });

  test('one that hangs is stopped: after tool_timeout by name, else when the time of its rollout is over', async () => {
    const hangs = `${answers}\nimport time\ntime.sleep(1000)`;
    const stuck = await failed(hangs, { toolTimeoutS: 2 });
    assert.deepEqual([stuck.outcome, stuck.program!.stopped], ['infra_failure', 'tool']);
    assert.match(stuck.error!, /^ToolTimeout: the program made no call for tool_timeout = 2 s/);
    const dropped = await failed(hangs, {}, { timeLimit: { seconds: 4, fate: 'drop' } });
    assert.deepEqual([dropped.outcome, dropped.turns.length], ['timeout', 1]);
    const cut = await failed(hangs, {}, { timeLimit: { seconds: 4, fate: 'truncate' } });
    assert.deepEqual([cut.outcome, cut.isTimedOut, cut.judged], ['truncated', true, { reward: 1, metrics: { exit: -1 } }]); // prettier-ignore
  });

  test('time that it waits for a sandbox is no time of its rollout, unless all work ends then', async (t) => {
    const program = await programHere({ agent: answers });
    const leased = await sandboxesHere(program.sandbox);
    const now = performance.now.bind(performance);
    let waitedMs = 0;
    t.mock.method(performance, 'now', () => now() + waitedMs);
    const sandboxes: RolloutSandboxes = {
      ...leased,
      take(request, options) {
        waitedMs += 120_000;
        return leased.take(request, options);
      },
    };
    const within = async (more: object) =>
      (await play(program, {}, { sandboxes, timeLimit: { seconds: 60, fate: 'drop', ...more } })).record.outcome;
    assert.deepEqual([await within({}), await within({ countsWaiting: true })], ['ok', 'timeout']);
  });

  test('a call that takes too long ends its rollout', async () => {
    const program = await programHere({ agent: answers, turnTimeoutS: 0.5 });
    const late = (): Promise<string> => new Promise((resolve) => setTimeout(() => resolve('2'), 60_000).unref());
    const { record } = await play(program, { says: late });
    assert.deepEqual([record.outcome, record.program!.stopped], ['timeout', 'turn']);
  });

  test('secrets that it prints are not kept: its key, and variables that it was given', async () => {
    const agent = `${answers}\nprint(os.environ["OPENAI_API_KEY"], os.environ["TOOL_TOKEN"])\nsys.exit(3)`;
    const { program, error } = await failed(agent, {}, {}, { TOOL_TOKEN: 'sk-verysecretindeed123' });
    assert.equal(program!.stdout, '[secret] [secret]\n');
    assert.doesNotMatch(error!, /verysecret/);
  });

  test('secrets in files that are kept for the score have names in their places', async () => {
    const agent = `${answers}\nimport json\nopen("log.json", "w").write(json.dumps([os.environ["OPENAI_API_KEY"], os.environ["DATABASE_URL"], "kept"]))`;
    const given = { DATABASE_URL: 'postgres://me:hünter%2F22@db/words' };
    const program = await programHere({ agent, score: { command: ['echo', '1'] } });
    const { record } = await play({ ...program, score: { ...program.score, collect: ['log.json'] } }, {}, {}, given);
    assert.equal(record.program!.files!['log.json'], '["[secret]", "[secret]", "kept"]');
  });

  test('from inside nothing is reached but the address of its own rollout', async () => {
    const other = createServer((_, response) => response.end('another')).listen(0, '127.0.0.1');
    await new Promise((resolve) => other.once('listening', resolve));
    const { port } = other.address() as AddressInfo;
    const agent = `
import socket
def reached(where):
    try:
        socket.create_connection(where, 2).close()
        return True
    except OSError:
        return False
own = int(os.environ["OPENAI_BASE_URL"].rsplit(":", 1)[1].split("/")[0])
print(json.dumps([reached(("127.0.0.1", own)), reached(("127.0.0.1", ${port})), reached(("1.1.1.1", 53)), reached(("localhost", ${port}))]))
try:
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/models", None, {"authorization": "Bearer wrong"}))
except urllib.error.HTTPError as error:
    print(error.code)
${answers}`;
    const record = await failed(agent).finally(() => other.close());
    assert.equal(record.program!.stdout, '[true, false, false, false]\n401\n');
  });

  test('a set-up that fails is the failure of its rollout, by name; one that works is run once for a task', async () => {
    const sandbox = { setup: ['sh', '-c', 'echo no such package >&2; exit 7'] };
    const record = await failed(answers, { sandbox });
    assert.equal(record.outcome, 'infra_failure');
    assert.match(record.error!, /^SetupFailed: sandbox\.setup \["sh","-c",.*\] ended with exit code 7\.\nno such package/s); // prettier-ignore
    const program = await programHere({ agent: `print(open("made").read())\n${answers}`, sandbox: { setup: ['sh', '-c', 'date +%N > made'] } }); // prettier-ignore
    const made = [await play(program), await play(program)].map(({ record: { program: run } }) => run!.stdout);
    assert.equal(made[0], made[1]);
    assert.match(made[0]!, /^\d+\n\n$/);
  });

  test('a set-up whose snapshot was removed meanwhile is made anew', async () => {
    const program = await programHere({ agent: `print(open("made").read())\n${answers}`, sandbox: { setup: ['sh', '-c', 'date +%N > made; true'] } }); // prettier-ignore
    const leased = await sandboxesHere(program.sandbox);
    let refused = 0;
    const sandboxes: RolloutSandboxes = {
      ...leased,
      take(request, options) {
        if (request.snapshot === undefined) return leased.take(request, options);
        refused += 1;
        throw new RatchetError('CheckpointDamaged', 'the snapshot is gone');
      },
    };
    const made = [await play(program, {}, { sandboxes }), await play(program, {}, { sandboxes })];
    assert.deepEqual(
      made.map(({ record }) => record.outcome),
      ['ok', 'ok'],
    );
    assert.equal(refused, 1);
    assert.notEqual(made[0]!.record.program!.stdout, made[1]!.record.program!.stdout);
  });

  test('a run that is given up ends it at once', async () => {
    const given = new AbortController();
    const playing = failed(`ask("x")\nimport time\ntime.sleep(1000)`, {}, { signal: given.signal });
    setTimeout(() => given.abort(new Error('cancelled')), 2_500);
    await assert.rejects(playing, /cancelled/);
  });
});
