import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { stillToCome } from '../still-to-come.ts';

const setup = new Command('setup')
  .description('write example configs into this folder; nothing is overwritten')
  .option('--prime-rl', 'in the words of prime-rl, in configs/prime-rl')
  .option('--vf-rl', 'in the words of vf-rl, in configs/vf-rl')
  .option('--dry-run', 'say what would be done')
  .action(async ({ primeRl = false, vfRl = false }: { primeRl?: boolean; vfRl?: boolean }) => {
    if (primeRl && vfRl)
      throw new RatchetError('ConfigInvalid', 'ratchet lab setup: expected one of --prime-rl and --vf-rl');
    // initLab(kind) of `ratchet init` goes here.
    const kind = primeRl ? 'prime-rl' : vfRl ? 'vf-rl' : 'lab';
    throw stillToCome(`lab setup (configs/${kind})`, [
      'ratchet env init NAME writes an environment of your own, and a run file that trains on it',
      'configs/rl/reverse-text.toml is a run that trains in a minute',
    ]);
  });

export const labCommand = new Command('lab').description('a folder to work in').addCommand(setup);
