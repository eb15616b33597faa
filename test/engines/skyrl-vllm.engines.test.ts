import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { ensureSkyrl, startSkyrl } from './skyrl.ts';
import { startRun } from './started-run.ts';
import { ensureVllm } from './vllm-cpu.ts';

/** A run that is trained by a real SkyRL and sampled by a real vLLM; both are killed: `npm run test:engines`. */

const [skyrl, vllm] = [await ensureSkyrl(), await ensureVllm()];
const missing = [skyrl, vllm].flatMap((one) => ('missing' in one ? [one.missing] : []));
const skip = missing.length > 0 ? missing.join('; ') : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

const config = (model: string, url: string, program: string): string => `
model = "${model}"
max_steps = 3
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-3
[lora]
r = 8
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 20
batch_size = 16
[trainer]
kind = "tinker"
url = "${url}"
base_model = "${model}"
[trainer.loss]
type = "importance_sampling"
[checkpoints]
interval = 1
[difficulty_filter]
enabled = false
[inference]
kind = "vllm"
program = "${program}"
[inference.vllm]
dtype = "float32"
max_model_len = 64
enforce_eager = true
`;

test(
  'SkyRL trains and vLLM samples; SkyRL is killed in the middle of a step, vLLM after it, and the run ends',
  { skip },
  async (t) => {
    assert('python' in skyrl && 'python' in vllm);
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-skyrl-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const model = path.join(folder, 'model');
    await saveModelFolder(await openModel('preset:reverse-text-vllm-0.2m', { seed: 0 }), model);
    const server = startSkyrl(skyrl, { folder, model, port: await choosePort(0) });
    t.after(() => server.kill());
    const written = config(model, server.url, vllm.python);
    const { handle, rows, killVllm } = await startRun(t, { folder, config: written });
    while (!rows().some((row) => row['step'] === 1)) await delay(100);
    while ((await handle.query<RunStatus>('status')).progress.training?.step !== 2) await delay(20);
    server.kill();
    server.start();
    while (!rows().some((row) => row['step'] === 2)) await delay(100);
    killVllm();
    const ended = await handle.result();
    assert.deepEqual([ended.step, ended.ledger.isSound], [3, true]);
    const canaries = rows().flatMap((row) => row['inference/canary_difference'] ?? []);
    assert.ok(
      canaries.every((difference) => difference < 1e-4),
      canaries.join(),
    );
    t.diagnostic(`canary ${canaries.map((one) => one.toExponential(1)).join(', ')}`);
  },
);
