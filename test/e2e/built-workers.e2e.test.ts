/** `ratchet worker`, as built, in every role: what a machine of a cluster runs. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { Client, Connection } from '@temporalio/client';
import { builtProgram } from '../../workers/built.mjs';
import { workerRoles } from '../../core/names.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { localRoles, policyUrlAt } from '../../workers/stack/roles.ts';
import { startStack, type Role } from '../../workers/stack/supervisor.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { repositoryFolder } from './small-run.ts';

const ratchet = path.join(repositoryFolder, 'cli/ratchet.mjs');
const configs = path.join(repositoryFolder, 'configs');

/** Files of a user in a folder without packages: Node 20 can read none of them by itself. */
const ownFiles = {
  'my-loss.ts': 'rl/custom-loss/my-loss.ts',
  'my-advantage.ts': 'rl/custom-loss/my-advantage.ts',
  'my-env.ts': 'own-environment/my-env.ts',
  // Two, so that they are loaded side by side.
  'my-second-env.ts': 'own-environment/my-env.ts',
  ...Object.fromEntries(
    ['my-engine.toml', 'my-trainer.ts', 'my-inference.ts', 'table.ts'].map((name) => [name, `own-engine/${name}`]),
  ),
};
/** The embedded engine, with a loss, an advantage and environments of the user's. */
const ownConfig = `
model = "preset:chars-0.4m"
max_steps = 1
batch_size = 16
rollouts_per_example = 4
max_async_level = 0
[sampling]
max_tokens = 6
[[env]]
id = "./my-env.ts"
[[env]]
id = "./my-second-env.ts"
[sft]
steps = 20
batch_size = 16
[trainer]
loss = { type = "custom", import = "./my-loss.ts" }
advantage = { type = "custom", import = "./my-advantage.ts" }
`;

test('every role works as the program that is built: the embedded engine, and modules in TypeScript', async (t) => {
  assert.ok(await builtProgram(), 'there is a program as built');
  const folder = mkdtempSync(path.join(os.tmpdir(), 'built-workers-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const [name, file] of Object.entries(ownFiles)) cpSync(path.join(configs, file), path.join(folder, name));
  writeFileSync(path.join(folder, 'own.toml'), ownConfig);
  const { client, address } = await startBuilt(t, folder);
  const train = (run: string, config: string, overrides: Readonly<Record<string, string>> = {}): Promise<RunSummary> =>
    client.workflow.execute<typeof trainRun>('trainRun', {
      workflowId: run,
      taskQueue: 'ratchet',
      args: [{ config, overrides }],
      workflowTaskTimeout: '5s',
    });
  const small = { max_steps: '1', batch_size: '16', 'eval.interval': '100' };
  const ended = await Promise.all([train('own', 'own.toml'), train('my-engine', 'my-engine.toml', small)]);
  assert.deepEqual(
    ended.map(({ step, ledger }) => [step, ledger.isSound]),
    [
      [1, true],
      [1, true],
    ],
  );
  const ends = [...workerRoles, 'metrics'].map((role) => endOf(folder, address, role));
  assert.deepEqual(await Promise.all(ends), [0, 0, 0, 0]);
});

/** Exit code of one more worker, which is shut down once it is ready. */
async function endOf(cwd: string, address: string, role: string): Promise<number | null> {
  const env = { ...process.env, TEMPORAL_ADDRESS: address, RATCHET_METRICS_PORT: String(await choosePort(0)) };
  const child = spawn(process.execPath, [ratchet, 'worker', '--role', role, '--grace', '5'], { cwd, env });
  child.stderr.resume();
  let said = '';
  child.stdout.on('data', (chunk: Buffer) => {
    said += chunk.toString();
    if (said.includes('ready at')) child.kill('SIGTERM');
  });
  const [code] = (await once(child, 'exit')) as [number | null];
  return code;
}

async function startBuilt(t: TestContext, folder: string): Promise<{ client: Client; address: string }> {
  const outputs = path.join(folder, 'outputs');
  mkdirSync(outputs);
  const policyPort = await choosePort(0);
  const asBuilt = (role: Role): Role => {
    const worked = workerRoles.find((one) => role.name === `${one} worker`);
    return worked === undefined
      ? role
      : {
          ...role,
          argsAtOwnServer: [],
          args: [ratchet, 'worker', '--role', worked, '--policy-url', policyUrlAt(policyPort)],
        };
  };
  const stack = await startStack({
    projectFolder: folder,
    roles: localRoles({ weightRoots: [outputs], policyPort, followsMetrics: false }).map(asBuilt),
    log: (line) => t.diagnostic(line),
  });
  const connection = await Connection.connect({ address: stack.temporalAddress });
  t.after(async () => {
    await connection.close();
    await stack.stop();
  });
  return { client: new Client({ connection }), address: stack.temporalAddress };
}
