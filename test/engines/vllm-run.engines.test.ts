import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection } from '@temporalio/client';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import { taskQueues } from '../../core/names.ts';
import { choosePort } from '../../workers/ports.ts';
import { localRoles } from '../../workers/roles.ts';
import { startStack } from '../../workers/supervisor.ts';
import { vllmRole } from '../../workers/vllm-role.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { ensureVllm, vllmVariables as variables } from './vllm-cpu.ts';

/** A run that is sampled by a real vLLM, which is started from its config and killed: `npm run test:engines`. */

const found = await ensureVllm();
const skip = 'missing' in found ? `no vLLM here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);
const python = 'python' in found ? found.python : '';

const config = `
model = "preset:reverse-text-vllm-0.2m"
max_steps = 4
batch_size = 64
rollouts_per_example = 4
learning_rate = 1e-3
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 60
batch_size = 16
[trainer]
advantage = "std_normalized"
[inference]
kind = "vllm"
program = "${python}"
[inference.vllm]
dtype = "float32"
max_model_len = 64
enforce_eager = true
`;

test(
  'a run whose vLLM is killed in the middle of a step ends, and samples from what is trained',
  { skip },
  async (t) => {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-engine-run-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    await writeFile(path.join(folder, 'run.toml'), config);
    await mkdir(path.join(folder, 'outputs'));
    const vllm = await vllmRole((await loadRunConfig('run.toml', { projectFolder: folder })).spec, folder);
    const policyPort = await choosePort(0);
    const stack = await startStack({
      projectFolder: folder,
      roles: localRoles({ weightRoots: [path.join(folder, 'outputs')], policyPort, followsMetrics: false, vllm }),
      log: (line) => void process.stderr.write(`${line}\n`),
      environment: { ...process.env, ...variables },
    });
    t.after(() => stack.stop());
    const client = new Client({ connection: await Connection.connect({ address: stack.temporalAddress }) });
    const handle = await client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: 'run',
      taskQueue: taskQueues.orchestrator,
      args: [{ config: 'run.toml', run: 'run', overrides: {} }],
    });
    const rows = (): Record<string, number>[] => {
      const file = path.join(folder, 'outputs/run/metrics.jsonl');
      if (!existsSync(file)) return [];
      const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1);
      return lines.map((line) => JSON.parse(line) as Record<string, number>);
    };
    while (!rows().some((row) => row['step'] === 2)) await delay(100);
    process.kill(-stack.pids()['vllm server']!, 'SIGKILL');
    const killedAt = performance.now();
    const ended = await handle.result();
    assert.deepEqual([ended.step, ended.ledger.isSound], [4, true]);
    const canaries = rows().flatMap((row) => row['inference/canary_difference'] ?? []);
    assert.ok(canaries.length >= 2 && canaries.every((difference) => difference < 1e-4), canaries.join());
    t.diagnostic(
      `killed after step 2; the run ended ${Math.round((performance.now() - killedAt) / 1000)} s later; canary ${canaries.map((one) => one.toExponential(1)).join(', ')}`,
    );
  },
);
