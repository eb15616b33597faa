/** Looking at a stranger's run file before training shows everything except what its own code would do. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { examineRunFile } from '../../load/checks/examine-run-file.ts';
import { checkRunFile } from '../../cli/doctor/services.ts';
import { describeRunFile } from '../../cli/describe/run-file.ts';

const program = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

/** A folder of a stranger's, whose every piece of code leaves a mark when it is run. */
function project(t: TestContext) {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-stranger-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const mark = path.join(folder, 'ran');
  const script = `import { writeFileSync } from 'node:fs';\nwriteFileSync(${JSON.stringify(mark)}, 'ran');\n`;
  writeFileSync(path.join(folder, 'env.mjs'), `${script}export const loadEnvironment = () => ({});\n`);
  writeFileSync(path.join(folder, 'loss.mjs'), `${script}export default () => 0;\n`);
  writeFileSync(path.join(folder, 'python'), `#!/bin/sh\necho ran > ${mark}\n`, { mode: 0o755 });
  writeFileSync(
    path.join(folder, 'run.toml'),
    `model = "preset:chars-0.4m"
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 4
[[env]]
id = "./env.mjs"
[[env]]
id = "math-python"
args = { python = "${folder}/python" }
[trainer.loss]
type = "custom"
import = "./loss.mjs"
[inference]
kind = "vllm"
program = "./python"
`,
  );
  return { folder, file: path.join(folder, 'run.toml'), hasRun: () => existsSync(mark) };
}

test('looking at a run file runs nothing that it names, and says what was not looked at', async (t) => {
  const { folder, file, hasRun } = project(t);
  const report = await examineRunFile(file, { projectFolder: folder });
  const said = describeRunFile(report).join('\n');
  assert.match(said, /not checked, since reading a run file runs no code that it names \(--import does/);
  assert.match(said, /environment env: whether it loads with its arguments.*It would run .*env\.mjs/);
  assert.match(said, /environment math-python: .*the interpreter/);
  assert.equal(hasRun(), false);

  const { checks } = await checkRunFile({ file, over: [], overrides: {} }, undefined, false);
  const left = checks.filter(({ says }) => /the file names/.test(says));
  assert.deepEqual(left.map(({ name, state }) => [name, state]), [
    ['environment', 'warn'],
    ['environment', 'warn'],
    ['vLLM', 'warn'],
  ]); // prettier-ignore
  assert.equal(hasRun(), false);
});

test('so do the commands, and with --import they look', async (t) => {
  const { folder, hasRun } = project(t);
  const run = (...args: string[]) =>
    new Promise<string>((resolve) => {
      execFile(process.execPath, [program, ...args], { cwd: folder }, (_, stdout, stderr) => resolve(stdout + stderr));
    });
  const [checked, dry, converted] = await Promise.all([
    run('check', 'run.toml'),
    run('train', 'run.toml', '--dry-run'),
    run('config', 'convert', 'run.toml'),
  ]);
  assert.match(checked, /python, which the file names and which was not asked whether it is vLLM/);
  for (const text of [checked, dry]) assert.match(text, /not checked/);
  assert.doesNotMatch(converted, /Error/);
  assert.equal(hasRun(), false);
  await run('check', 'run.toml', '--import');
  assert.equal(hasRun(), true);
});
