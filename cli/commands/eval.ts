import { Command } from 'commander';
import { compareCommand } from '../eval/compare.ts';
import { showCommand } from '../eval/show.ts';
import { tuiCommand } from '../eval/tui.ts';
import { runCommand } from '../eval/run.ts';
import { stillToCome } from '../still-to-come.ts';

const today = [
  '[eval] in a run file evaluates while the run trains; ratchet metrics RUN shows it',
  'ratchet baseline FILE measures a model on its environments before it is trained',
];

export const evalCommand = new Command('eval')
  .description('evaluate checkpoints of a run, or models on environments (still to come)')
  .option('--weights-dir <folder>', 'every checkpoint in it: outputs/weights')
  .option('--steps <list>', 'these alone: 10,50,100')
  .option('--no-eval-base', 'leave the base model out')
  .option('--watcher', 'wait for further checkpoints')
  .option('--client.base-url <url>', 'where the base model is served')
  .option('--env.id <environment>', 'what it is evaluated on')
  .option('--dry-run', 'say what would be done')
  .action(() => {
    throw stillToCome('eval', [...today, 'ratchet chat RUN --step N talks to a checkpoint']);
  })
  .addCommand(runCommand)
  .addCommand(showCommand)
  .addCommand(compareCommand)
  .addCommand(tuiCommand);
