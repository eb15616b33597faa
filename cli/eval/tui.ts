import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../core/errors.ts';
import { looksOf } from '../follow/audience.ts';
import { storeOption } from '../typed/store-option.ts';
import { allEvaluations } from './find.ts';

export const tuiCommand = new Command('tui')
  .description('look through evaluations: environments, models, runs, rollouts; two of them side by side')
  .argument(
    '[folder|run]',
    "default: ./outputs/evals, ./environments/*/outputs/evals, and the runs in ./outputs; verifiers' own folders, too",
  )
  .option(...storeOption)
  .action(async (name, options) => {
    if (!process.stdin.isTTY || !process.stdout.isTTY) {
      throw new RatchetError(
        'ConfigInvalid',
        `ratchet eval tui needs a terminal. Without one: npx ratchet-rl eval show ${name ?? 'outputs/evals'}, with --json for programs.`,
      );
    }
    const find = () => allEvaluations(name, options);
    const found = await find();
    // Imported on use: it takes long to load.
    const { browse } = await import('../view/evaluations/browser.ts');
    await browse({ found, find, screen: process.stdout, keyboard: process.stdin, shows: looksOf(process.env) });
  });
