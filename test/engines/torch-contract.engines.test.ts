/** The trainer's promises, kept by PyTorch on the CPU: on one rank and on two, with all weights and with adapters. */
import { test } from 'node:test';
import { contractLosses, trainerContract } from '../../backends/testing/index.ts';
import { TorchTrainer } from '../../backends/trainer/torch.ts';
import { ensureTorch } from './torch-cpu.ts';

const found = await ensureTorch();
const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };

if ('missing' in found) {
  test('PyTorch keeps the promises of a trainer', { skip: `no PyTorch here: ${found.missing}` }, () => undefined);
} else {
  const { python } = found;
  for (const ranks of [1, 2]) {
    for (const part of [null, { lora, seed: 3 }]) {
      trainerContract(`PyTorch on ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}${part ? ' with adapters' : ''}`, {
        open: () => Promise.resolve(new TorchTrainer({ python, ranks, threads: 1 })),
        ...(part ? { part } : {}),
        promises: {
          losses: contractLosses,
          // Aggregations are factors of rows, whatever the ranks and the part that is trained: one case tries all of them.
          ...(ranks === 1 && !part ? { aggregations: ['token', 'sequence', 'dr_grpo'] as const } : {}),
          penalizesKl: true,
          exactReplay: true,
          savesOptimizer: true,
          refuses: true,
          supervises: true,
          scores: true,
          exportsModels: true,
          sameUpdate: 1e-4,
        },
      });
    }
  }
}
