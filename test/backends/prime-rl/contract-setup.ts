import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { contractLosses } from '../../../backends/testing/index.ts';
import { PrimeRlTrainer } from '../../../backends/trainer/prime-rl.ts';
import { writeStandInPrimeRl } from '../../stand-ins/prime-rl/python.ts';

/** What the adapter promises over the stand-in. */
export const promises = {
  losses: contractLosses,
  aggregations: ['token', 'sequence'],
  exactReplay: true,
  savesOptimizer: true,
  refuses: true,
  supervises: true,
  exportsModels: true,
} as const;

/** Opens trainers over the stand-in, in a folder that lasts as long as the test process. */
export function openOn(ranks: number): () => Promise<PrimeRlTrainer> {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-prime-rl-'));
  process.env['RATCHET_PENDING'] = folder;
  after(() => rmSync(folder, { recursive: true, force: true }));
  const python = writeStandInPrimeRl(folder);
  const usual = { checkpointInterval: 2, maxSteps: 6, seqLen: 64, rankTimeoutS: 20, more: {} };
  return () => Promise.resolve(new PrimeRlTrainer({ python, ranks, ...usual }));
}
