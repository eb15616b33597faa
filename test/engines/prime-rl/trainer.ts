import type { PrimeRlOptions } from '../../../backends/prime-rl/trainer-starts.ts';
import { PrimeRlTrainer } from '../../../backends/trainer/prime-rl.ts';

/** What prime-rl's trainer needs to run on a CPU: on-cpu/ has one kind of attention, and nothing that saves a GPU's memory. */
export const settingsOnCpu = {
  attn: 'flash_attention_2',
  compile: false,
  optimCpuOffload: false,
  more: { model: { ac: 'None', ac_offloading: 'None' } },
} as const;

/** v0.4.0 has PyTorch's attention, and saves no memory by default. */
export const olderSettingsOnCpu = { attn: 'sdpa', compile: undefined, optimCpuOffload: undefined, more: {} } as const;

/** A trainer of the presets' size; a checkpoint every second step. */
export function openPrimeRl(python: string, options: Partial<PrimeRlOptions> = {}): PrimeRlTrainer {
  return new PrimeRlTrainer({
    python,
    ranks: 1,
    checkpointInterval: 2,
    maxSteps: 1000,
    seqLen: 64,
    rankTimeoutS: 30,
    ...settingsOnCpu,
    ...options,
  });
}
