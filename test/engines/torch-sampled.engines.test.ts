/** Runs that PyTorch trains on the CPU, killed in a step: sampled by the embedded engine, and by a real vLLM. `npm run test:engines`. */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, readlink, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { shardSizeVariable } from '../../backends/trainer/index.ts';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { startRun } from './started-run.ts';
import { ensureTorch } from './torch-cpu.ts';
import { ensureVllm } from './vllm-cpu.ts';

const [torch, vllm] = [await ensureTorch(), await ensureVllm()];
const python = 'python' in torch ? torch.python : '';
const skipped = (...engines: readonly (typeof torch)[]): string | false =>
  engines.flatMap((engine) => ('missing' in engine ? [engine.missing] : [])).join('; ') || false;

const steps = 4;
const config = (model: string, more: string): string => `
model = "${model}"
max_steps = ${steps}
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 20
batch_size = 16
[checkpoints]
interval = 1
[difficulty_filter]
enabled = false
[trainer]
kind = "torch"
program = "${python}"
${more}`;

async function ownModel(folder: string): Promise<string> {
  const model = path.join(folder, 'model');
  await saveModelFolder(await openModel('preset:reverse-text-vllm-0.2m', { seed: 0 }), model);
  return model;
}

/** Kills the processes of a project's trainer; they share its working folder. */
async function killRanks(folder: string): Promise<number> {
  let killed = 0;
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    const at = await readlink(`/proc/${pid}/cwd`).catch(() => '');
    if (!command.includes('ratchet_torch') || at !== folder) continue;
    process.kill(Number(pid), 'SIGKILL');
    killed += 1;
  }
  return killed;
}

/** A run whose trainer is killed while it trains the second step. */
async function trainKilled(t: TestContext, more: string): Promise<void> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-torch-run-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  process.env[shardSizeVariable] = '100KB';
  const { handle, rows } = await startRun(t, { folder, config: config(await ownModel(folder), more) });
  while (!rows().some((row) => row['step'] === 1)) await delay(100);
  while ((await handle.query<RunStatus>('status')).progress.training?.step !== 2) await delay(20);
  assert.ok((await killRanks(folder)) > 0, 'there was a trainer to kill');
  const ended = await handle.result();
  assert.deepEqual([ended.step, ended.ledger.isSound], [steps, true]);
  const canaries = rows().flatMap((row) => row['inference/canary_difference'] ?? []);
  assert.ok(canaries.length >= 2 && canaries.every((difference) => difference < 1e-4), canaries.join());
  const weights = await readdir(path.join(folder, 'outputs/run/weights', `step_${steps}`));
  const files = weights.filter((name) => name.endsWith('.safetensors')).length;
  if (!more.includes('[lora]'))
    assert.ok(files > 2 && weights.includes('model.safetensors.index.json'), weights.join());
  const state = await readdir(path.join(folder, 'outputs/run/checkpoints', `step_${steps}`, 'optimizer'));
  assert.ok(state.includes('optimizer.json') && state.some((name) => name.endsWith('.distcp')), state.join());
  t.diagnostic(`canary ${canaries.map((one) => one.toExponential(1)).join(', ')}`);
}

test(
  'PyTorch trains all weights and the embedded engine samples; the trainer is killed in a step',
  { skip: skipped(torch) },
  (t) => trainKilled(t, ''),
);

test(
  'PyTorch trains adapters and the embedded engine samples; the trainer is killed in a step',
  { skip: skipped(torch) },
  (t) => trainKilled(t, '[lora]\nr = 4\n'),
);

test('PyTorch trains and vLLM samples; the trainer is killed in a step', { skip: skipped(torch, vllm) }, (t) => {
  assert('python' in vllm);
  return trainKilled(
    t,
    `[inference]\nkind = "vllm"\nprogram = "${vllm.python}"\n[inference.vllm]\ndtype = "float32"\nmax_model_len = 64\nenforce_eager = true\n`,
  );
});
