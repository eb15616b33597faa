import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { startRun } from './started-run.ts';
import { ensureVllm } from './vllm-cpu.ts';

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
    const { handle, rows, killVllm } = await startRun(t, { folder, config });
    while (!rows().some((row) => row['step'] === 2)) await delay(100);
    killVllm();
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
