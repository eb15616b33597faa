import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { initLab } from './init.ts';
import { print } from '../../output/print.ts';

const setup = new Command('setup')
  .description('write example configs into this folder, as `ratchet init` does; nothing is overwritten')
  .option('--prime-rl', 'in the words of prime-rl, in configs/prime-rl')
  .option('--vf-rl', 'in the words of vf-rl, in configs/vf-rl')
  .option('--dry-run', 'say what would be written, and write nothing')
  .action(async ({ primeRl = false, vfRl = false, dryRun: isDryRun }) => {
    if (primeRl && vfRl) {
      throw new RatchetError('ConfigInvalid', 'ratchet lab setup: expected one of --prime-rl and --vf-rl, got both.');
    }
    const kind = primeRl ? 'prime-rl' : vfRl ? 'vf-rl' : 'lab';
    print(await initLab(kind, process.cwd(), { isDryRun }));
  });

export const labCommand = new Command('lab').description('a folder to work in').addCommand(setup);
