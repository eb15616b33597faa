import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { lookAtEngine, openInference, openTeacher } from '../../backends/inference/index.ts';
import { inferenceContract, trainVersions, type VersionFolders } from '../../backends/testing/index.ts';
import { engineLogprobs, farthest, promptsOf } from '../../backends/testing/material.ts';
import { parseRunConfig } from '../../core/spec/parse-run-config.ts';
import { InferenceSpec } from '../../core/spec/run-spec.ts';
import { vllmArguments, vllmSpecDefaults } from '../../core/spec/vllm-spec.ts';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import { choosePort } from '../../workers/ports.ts';
import { ensureVllm, vllmVariables as variables } from './vllm-cpu.ts';

/** The contract of an inference, held by a real vLLM: `npm run test:engines`. */

const found = await ensureVllm();
const skip = 'missing' in found ? `no vLLM here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);
const python = 'python' in found ? found.python : '';
const model = 'preset:reverse-text-vllm-0.2m';
const args = { dtype: 'float32', max_model_len: 64, enforce_eager: true, max_num_seqs: 64 };
const spec = { ...vllmSpecDefaults, loraRank: 4, args };

describe('vLLM keeps the contract', { skip }, () => {
  const cleanups: (() => unknown)[] = [];
  let folders: VersionFolders;
  let server: ChildProcess;
  let url: string;
  let folder: string;

  before(async () => {
    const root = await mkdtemp(path.join(os.tmpdir(), 'ratchet-engine-'));
    cleanups.push(() => rm(root, { recursive: true, force: true }));
    const base = path.join(root, 'base');
    folder = base;
    await saveModelFolder(await openModel(model, { seed: 0 }), base);
    // One set of versions for all tests: a server starts for minutes.
    const context = { after: (clean: () => unknown) => void cleanups.push(clean) } as unknown as TestContext;
    const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };
    folders = await trainVersions(context, { model: base, part: { lora, seed: 1 } });
    const port = await choosePort(0);
    url = `http://127.0.0.1:${port}`;
    const log = openSync(path.join(root, 'vllm.log'), 'w');
    const started = ['-m', 'vllm.entrypoints.openai.api_server', '--model', base, ...vllmArguments(spec, port)];
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

  test('as a teacher it says of whole rows what its weights say', async () => {
    const text = `model = "m"\nloss = "opd"\n[[env]]\nid = "reverse-text"\n[teacher]\nmodel = "base"\nurl = "${url}/v1"\n`;
    const parsed = parseRunConfig(text, { file: 'run.toml' });
    assert(parsed.ok && parsed.spec.teacher);
    const prompts = await promptsOf(folder);
    const version = { step: 0, digest: '', weights: '', file: { key: '', sha256: '', bytes: 0 } };
    const { scorer } = openTeacher(parsed.spec.teacher);
    const told = await scorer.promptLogprobs({ policy: { name: 'base', version, folder }, prompts });
    const rows = prompts.map((tokenIds) => ({ tokenIds, lossMask: tokenIds.map((_, i) => Number(i > 0)) }));
    assert.ok(farthest(rows, told, await engineLogprobs(folder, rows, 1)) <= 1e-4);
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
