/** The contract of trainers over the adapter of prime-rl, with a stand-in that speaks its files. test/engines has the real one. */
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

trainerContract('prime-rl’s trainer on two ranks, as a stand-in', { open: open(2), promises });
