/** The trainer's promises, kept by prime-rl's own trainer on the CPU: on one rank and on two, with all weights and with adapters. `npm run test:engines` */
import { after, test } from 'node:test';
import { contractLosses, trainerContract } from '../../backends/testing/index.ts';
import { primeRl, startForks } from './prime-rl/installations.ts';
import { olderSettingsOnCpu, openPrimeRl } from './prime-rl/trainer.ts';

const found = primeRl('head');
const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };

if ('missing' in found) {
  test('prime-rl keeps the promises of a trainer', { skip: found.missing }, () => undefined);
} else {
  const forks = await startForks(found);
  after(() => forks.close());
  for (const ranks of [1, 2]) {
    for (const part of [null, { lora, seed: 3 }]) {
      trainerContract(`prime-rl on ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}${part ? ' with adapters' : ''}`, {
        open: () => Promise.resolve(openPrimeRl(forks.python, { ranks })),
        ...(part ? { part } : {}),
        // It computes in bfloat16, and its versions are in bfloat16: a weight near 1 is rounded by up to 1/256.
        tolerance: 0.05,
        promises: {
          losses: contractLosses,
          ...(ranks === 1 && !part ? { aggregations: ['token', 'sequence', 'dr_grpo'] as const } : {}),
          // It begins with new adapters alone; how they move is compared in prime-rl-trainer.engines.test.ts.
          ...(part ? { startsAfresh: false, drawsAdapters: true } : {}),
          exactReplay: true,
          savesOptimizer: true,
          refuses: true,
          supervises: true,
          exportsModels: true,
        },
      });
    }
  }
}

const older = primeRl('v0.4.0');

if ('missing' in older) {
  test('prime-rl v0.4.0 keeps the promises of a trainer', { skip: older.missing }, () => undefined);
} else {
  const forks = await startForks(older);
  after(() => forks.close());
  for (const part of [null, { lora, seed: 3 }]) {
    trainerContract(`prime-rl v0.4.0${part ? ' with adapters' : ''}`, {
      open: () => Promise.resolve(openPrimeRl(forks.python, olderSettingsOnCpu)),
      ...(part ? { part } : {}),
      tolerance: 0.05,
      promises: {
        // Its batches have nothing but a policy loss by tokens.
        losses: contractLosses.filter((loss) => loss !== 'cross_entropy'),
        ...(part ? { startsAfresh: false, drawsAdapters: true } : {}),
        exactReplay: true,
        savesOptimizer: true,
        refuses: true,
        exportsModels: true,
      },
    });
  }
}
