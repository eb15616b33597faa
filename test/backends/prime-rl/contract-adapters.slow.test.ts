/** The contract of trainers over the adapter of prime-rl on one rank, and of its adapters: see contract.slow.test.ts. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { contractLosses, trainerContract } from '../../../backends/testing/index.ts';
import { PrimeRlTrainer } from '../../../backends/trainer/prime-rl.ts';
import { writeStandInPrimeRl } from '../../stand-ins/prime-rl/python.ts';

const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-prime-rl-'));
process.env['RATCHET_PENDING'] = folder;
after(() => rmSync(folder, { recursive: true, force: true }));

const python = writeStandInPrimeRl(folder);
const open = (ranks: number) => async (): Promise<PrimeRlTrainer> =>
  Promise.resolve(
    new PrimeRlTrainer({ python, ranks, checkpointInterval: 2, maxSteps: 6, seqLen: 64, rankTimeoutS: 20, more: {} }),
  );
const promises = {
  losses: contractLosses,
  aggregations: ['token', 'sequence'],
  exactReplay: true,
  savesOptimizer: true,
  refuses: true,
  supervises: true,
  exportsModels: true,
} as const;

trainerContract('prime-rl’s trainer on one, as a stand-in', {
  open: open(1),
  promises: { ...promises, aggregations: ['token'], temperatures: [0.7], exportsModels: false },
});

trainerContract('prime-rl’s trainer with adapters, as a stand-in', {
  open: open(1),
  part: { lora: { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] }, seed: 3 },
  // It begins with new adapters alone.
  promises: { ...promises, aggregations: ['token'], startsAfresh: false },
});
