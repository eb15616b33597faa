import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { lookAtEngine, openInference, openTeacher } from '../../backends/inference/index.ts';
import { inferenceContract, trainVersions, type VersionFolders } from '../../backends/testing/index.ts';
import { engineLogprobs, farthest, promptsOf } from '../../backends/testing/material.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { vllmArguments, type VllmSpec } from '../../config/models/vllm-spec.ts';
import { vllmSpecDefaults } from '../stand-ins/vllm-spec-defaults.ts';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { ensureVllm, vllmVariables as variables } from './vllm-cpu.ts';

/** The contract of an inference, held by a real vLLM: `npm run test:engines`. */

const found = await ensureVllm();
const skip = 'missing' in found ? `no vLLM here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);
const python = 'python' in found ? found.python : '';
const model = 'preset:reverse-text-vllm-0.2m';
const args = { dtype: 'float32', max_model_len: 64, enforce_eager: true, max_num_seqs: 64 };
const spec = { ...vllmSpecDefaults, loraRank: 4, args };

/** Stops both servers and removes their folder at the end. */
const cleanups: (() => unknown)[] = [];
let base: string;
before(async () => {
  if (skip) return;
  const root = await mkdtemp(path.join(os.tmpdir(), 'ratchet-engine-'));
  cleanups.push(() => rm(root, { recursive: true, force: true }));
  base = path.join(root, 'base');
  await saveModelFolder(await openModel(model, { seed: 0 }), base);
});
after(async () => {
  for (const clean of cleanups.toReversed()) await clean();
});

/** Gives its address when it has generated a token. */
async function startVllm(spec: VllmSpec): Promise<string> {
  const port = await choosePort(0);
  const url = `http://127.0.0.1:${port}`;
  const file = path.join(path.dirname(base), `vllm-${port}.log`);
  const log = openSync(file, 'w');
  const started = ['-m', 'vllm.entrypoints.openai.api_server', '--model', base, ...vllmArguments(spec, port)];
  const env = { ...process.env, ...variables, VLLM_ALLOW_RUNTIME_LORA_UPDATING: '1' };
  const server = spawn(python, started, { stdio: ['ignore', log, log], detached: true, env });
  closeSync(log);
  cleanups.push(() => server.exitCode ?? process.kill(-server.pid!, 'SIGKILL'));
  const address = { url, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null };
  while ((await lookAtEngine(address)) !== 'alive') {
    assert.equal(server.exitCode, null, readFileSync(file, 'utf8').slice(-3_000));
    await delay(1_000);
  }
  return url;
}

describe('vLLM keeps the contract', { skip }, () => {
  let folders: VersionFolders;
  let url: string;

  before(async () => {
    // One set of versions for all tests: a server starts for minutes.
    const context = { after: (clean: () => unknown) => void cleanups.push(clean) } as unknown as TestContext;
    const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };
    folders = await trainVersions(context, { model: base, part: { lora, seed: 1 } });
    url = await startVllm(spec);
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

// Without adapters: with them the CPU build's engine dies of several rows that are scored at once.
test('as a teacher vLLM says of whole rows what its weights say', { skip }, async () => {
  const url = await startVllm({ ...spec, loraRank: null });
  const text = `model = "m"\nloss = "opd"\n[[env]]\nid = "reverse-text"\n[teacher]\nmodel = "base"\nurl = "${url}/v1"\n`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok && parsed.spec.teacher);
  const prompts = await promptsOf(base);
  const version = {
    step: 0,
    digest: '',
    weights: '',
    file: { key: '', sha256: '', bytes: 0 },
    sums: { key: '', sha256: '', bytes: 0 },
  };
  const { scorer } = openTeacher(parsed.spec.teacher);
  const told = await scorer.promptLogprobs({ policy: { name: 'base', version, folder: base }, prompts });
  const rows = prompts.map((tokenIds) => ({ tokenIds, lossMask: tokenIds.map((_, i) => Number(i > 0)) }));
  assert.ok(farthest(rows, told, await engineLogprobs(base, rows, 1)) <= 1e-4);
});
