/** What `ratchet env check` says of agents with something wrong: what it is, and what to do. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { canSandbox, missingSandbox } from '../environments/sandbox-here.ts';
import { openCommands } from './typed.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const type = openCommands();

/** The example in a folder of the user's, with this text of its run file replaced. */
async function projectWith(t: TestContext, from = '', to = ''): Promise<string> {
  const folder = await temporaryFolder(t);
  await cp(path.join(root, 'configs/agents'), folder, { recursive: true });
  const text = await readFile(path.join(folder, 'repair.toml'), 'utf8');
  assert.ok(text.includes(from));
  await writeFile(path.join(folder, 'repair.toml'), text.replace(from, to));
  return folder;
}

describe('an agent that is checked', { skip: (await canSandbox()) ? false : missingSandbox }, () => {
  const check = async (t: TestContext, from = '', to = '') =>
    type(await projectWith(t, from, to), ['env', 'check', 'repair.toml']);

  test('as it comes plays a task', async (t) => {
    const { code, out } = await check(t);
    assert.equal(code, 0, out);
    assert.match(out, /384 to train on, 96 held out/);
    assert.match(out, /Task 0, with answers that are made up: 2 calls of the policy.*\n {2}ok, reward 0 {3}\(repaired 0, attempts 2\)/); // prettier-ignore
  });

  test('with a command that is not there says so, and which programs are', async (t) => {
    const { code, out } = await check(t, 'command = ["python3", "agent.py"]', 'command = ["pythn3", "agent.py"]');
    assert.equal(code, 1);
    assert.match(out, /infra_failure, no reward: NeverCalled: .*; it ended with exit code 127: a program was not found\. Its sandbox has those of its image \(of kind "namespace" those of \/usr of this machine\), and what `sandbox\.files` and `sandbox\.setup` put there\.\nstderr: pythn3: No such file or directory\n$/); // prettier-ignore
  });

  test('without its tasks, or its files, names the line and the file', async (t) => {
    const tasks = await check(t, './repair/tasks.jsonl', './repair/task.jsonl');
    assert.equal(tasks.code, 2);
    assert.match(tasks.err, /repair\.toml:\d+:1 {2}env\[0\]\.tasks\n.*\n +received {2}there is no such file: .*\/repair\/task\.jsonl/); // prettier-ignore
    const files = await check(t, './repair/agent.py', './repair/agents.py');
    assert.equal(files.code, 2);
    assert.match(
      files.err,
      /env\[0\]\.sandbox\.files\n.*\n +received {2}there is no such file: .*\/repair\/agents\.py/,
    );
  });

  test('whose score fails has no reward, and what the score said', async (t) => {
    const command = 'command = ["python3", "score.py"]';
    const failing = await check(t, command, 'command = ["python3", "scor.py"]');
    assert.equal(failing.code, 1);
    assert.match(failing.out, /judge_failure, no reward: score\.command \["python3","scor\.py"\] ended with exit code 2, so what it printed does not count\.\nstderr: .*can't open file '\/work\/scor\.py'/); // prettier-ignore
    const absent = await check(t, command, 'command = ["scorer"]');
    assert.match(absent.out, /score\.command \["scorer"\] could not be run: it ended with exit code 127: a program was not found\./); // prettier-ignore
    const silent = await check(t, command, 'command = ["echo", "fine"]');
    assert.match(silent.out, /score\.command .* printed no reward: expected a number, or \{"reward": …, "metrics": \{…\}\}, in the last line\.\nstdout: fine/); // prettier-ignore
  });

  test('where the machine allows no namespaces of networks says what is needed, and which other kinds there are', async (t) => {
    const folder = await projectWith(t);
    const words = `${process.execPath} ${path.join(root, 'cli/ratchet.mjs')} env check repair.toml`;
    const script = `echo 0 > /proc/sys/user/max_net_namespaces && echo bounded && ${words}`;
    const said = await new Promise<string>((resolve) => {
      execFile('unshare', ['--user', '--map-root-user', 'sh', '-c', script], { cwd: folder }, (error, out, err) =>
        resolve(`${out}${err}\ncode ${String(error?.code ?? 0)}`),
      );
    });
    if (!said.startsWith('bounded')) return t.skip(`this machine does not let a user bound namespaces: ${said}`);
    assert.match(said, /There are no sandboxes of namespaces here: expected Linux.*user\.max_net_namespaces above 0/);
    assert.match(said, /\[env\.sandbox\] kind = "docker" or "ssh" takes them from elsewhere\. What came instead:\n.*No space left on device/); // prettier-ignore
    assert.match(said, /\ncode 2$/);
  });
});
