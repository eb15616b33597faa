/**
 * Records the trainer contract as PyTorch keeps it on the CPU, for `bench/gpu.sh`: `npx tsx bench/record-torch.ts FOLDER`. The Python is RATCHET_TORCH_PYTHON,
 * or the one of `ratchet engine install torch`.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { findTorchPython } from '../backends/torch/find-python.ts';
import { knownModel } from '../config/models/known-models.ts';
import { loraModules } from '../config/settings/optimizer.ts';
import { trainingMemory } from '../core/training-memory.ts';

const folder = path.resolve(process.argv[2] ?? 'bench/gpu/cases');
const python = await findTorchPython(process.env['RATCHET_TORCH_PYTHON'] ?? null, process.cwd());
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });

/** The steps that bench/gpu/speed.py measures. */
const { shape } = knownModel('Qwen/Qwen2.5-1.5B')!;
const estimates = { lora: { r: 32, targetModules: loraModules }, full: null };
const step = {
  shape,
  tokens: 8191,
  dtype: 'bfloat16',
  heldIn: 'float32',
  moments: 2,
  recomputesEvery: 1,
  ranks: 1,
} as const;
const bytes = Object.entries(estimates).map(([name, lora]) => {
  const memory = trainingMemory({ ...step, lora, offloadsWeights: false, offloadsMoments: false, isPacked: false });
  return [name, memory.total] as const;
});
writeFileSync(path.join(folder, 'estimates.json'), JSON.stringify(Object.fromEntries(bytes)));

const recorder = path.join(folder, 'python');
const script = fileURLToPath(new URL('gpu/record.py', import.meta.url));
// The trainer starts it as `python -P -m ratchet_torch SOCKET`.
writeFileSync(
  recorder,
  `#!/bin/sh\nfor last; do :; done\nRATCHET_RECORD='${folder}' exec '${python}' -P '${script}' "$last"\n`,
);
chmodSync(recorder, 0o755);
const contract = fileURLToPath(new URL('../test/engines/torch-contract.engines.test.ts', import.meta.url));
const pattern = process.argv[3] ?? 'PyTorch on 1 rank';
const { status } = spawnSync(
  process.execPath,
  ['--import', 'tsx', '--test', `--test-name-pattern=${pattern}`, contract],
  {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, RATCHET_TORCH_PYTHON: recorder },
  },
);
rmSync(recorder);
process.exitCode = status ?? 1;
