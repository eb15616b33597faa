import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection } from '@temporalio/client';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import { lookAtEngine, openInference } from '../../backends/inference/index.ts';
import { inferenceContract, trainVersions, type VersionFolders } from '../../backends/testing/index.ts';
import { taskQueues } from '../../core/names.ts';
import { InferenceSpec } from '../../core/spec/run-spec.ts';
import { vllmArguments, vllmSpecDefaults } from '../../core/spec/vllm-spec.ts';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import { choosePort } from '../../workers/ports.ts';
import { localRoles } from '../../workers/roles.ts';
import { startStack } from '../../workers/supervisor.ts';
import { vllmRole } from '../../workers/vllm-role.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { ensureVllm } from './vllm-cpu.ts';

/** Against a real vLLM: `npm run test:engines`. */

const found = await ensureVllm();
const skip = 'missing' in found ? `no vLLM here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);
const python = 'python' in found ? found.python : '';
const model = 'preset:reverse-text-vllm-0.2m';
const args = { dtype: 'float32', max_model_len: 64, enforce_eager: true, max_num_seqs: 64 };
const spec = { ...vllmSpecDefaults, loraRank: 4, args };
const variables = { VLLM_CPU_KVCACHE_SPACE: '1', HF_HUB_OFFLINE: '1', VLLM_NO_USAGE_STATS: '1' };

describe('vLLM keeps the contract', { skip }, () => {
  const cleanups: (() => unknown)[] = [];
  let folders: VersionFolders;
  let server: ChildProcess;
  let url: string;

  before(async () => {
    const root = await mkdtemp(path.join(os.tmpdir(), 'ratchet-engine-'));
    cleanups.push(() => rm(root, { recursive: true, force: true }));
    const base = path.join(root, 'base');
    await saveModelFolder(await openModel(model, { seed: 0 }), base);
    // One set of versions for all tests: a server starts for minutes.
    const context = { after: (clean: () => unknown) => void cleanups.push(clean) } as unknown as TestContext;
    const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };
    folders = await trainVersions(context, { model: base, part: { lora, seed: 1 } });
    const port = await choosePort(0);
    url = `http://127.0.0.1:${port}`;
    const log = openSync(path.join(root, 'vllm.log'), 'w');
    const started = ['-m', 'vllm.entrypoints.openai.api_server', ...vllmArguments(spec, base, port)];
    const env = { ...process.env, ...variables, VLLM_ALLOW_RUNTIME_LORA_UPDATING: '1' };
    server = spawn(python, started, { stdio: ['ignore', log, log], detached: true, env });
    closeSync(log);
    const address = { url, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null };
    while ((await lookAtEngine(address)) !== 'alive') {
      assert.equal(server.exitCode, null, readFileSync(path.join(root, 'vllm.log'), 'utf8').slice(-3_000));
      await delay(1_000);
    }
  });

  after(async () => {
    if (server?.pid !== undefined) process.kill(-server.pid, 'SIGKILL');
    for (const clean of cleanups) await clean();
  });

  inferenceContract('vLLM with adapters', {
    versions: () => Promise.resolve(folders),
    open: () => Promise.resolve(openInference(InferenceSpec.parse({ kind: 'vllm', url, vllm: spec }), '')),
    promises: {
      seeds: false,
      scores: true,
      holds: 'held',
      truncates: true,
      stops: true,
      contextTokens: 64,
      temperatures: [1, 0.7],
      readsModels: true,
    },
    tolerance: 1e-4,
  });
});

const config = `
model = "${model}"
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
      const lines = readFileSync(path.join(folder, 'outputs/run/metrics.jsonl'), 'utf8').split('\n').slice(0, -1);
      return lines.map((line) => JSON.parse(line) as Record<string, number>);
    };
    await handle.query('status');
    while (!(await hasStep(rows, 2))) await delay(100);
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

async function hasStep(rows: () => Record<string, number>[], step: number): Promise<boolean> {
  try {
    return rows().some((row) => row['step'] === step);
  } catch {
    return Promise.resolve(false); // not written yet
  }
}
