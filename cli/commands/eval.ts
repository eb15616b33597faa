import { Command } from '@commander-js/extra-typings';
import { grantOption } from '../typed/store-option.ts';
import { compareCommand } from '../eval/compare.ts';
import { listCommand } from '../eval/list.ts';
import { showCommand } from '../eval/show.ts';
import { tuiCommand } from '../eval/tui.ts';
import { runCommand } from '../eval/run.ts';
import { scheduleCommand } from '../eval/schedule.ts';
import { checkpointsCommand } from '../eval/checkpoints.ts';
import { evaluateWeights } from '../eval/subject/weights-folder.ts';

const help = `
Without a command: the checkpoints in a folder, in the words of prime-rl's \`uv run eval\`:
  npx ratchet-rl eval --weights-dir outputs/my-run/weights --steps 10,50,100 --no-eval-base
  npx ratchet-rl eval --client.base-url http://localhost:8000/v1 --weights-dir some/weights --env.id gsm8k
A folder of a run of Ratchet is \`ratchet eval checkpoints RUN\`; any other is loaded, step after step, by the server that is named.
`;

export const evalCommand = new Command('eval')
  .enablePositionalOptions() // words after a subcommand are that subcommand's
  .description('evaluate models and checkpoints on environments, on a schedule, and look at the results')
  .option('--weights-dir <folder>', 'every checkpoint in it: outputs/weights')
  .option('--steps <list>', 'these alone: 10,50,100')
  .option('--no-eval-base', 'leave the base model out')
  .option('--watcher', 'wait for further checkpoints')
  .option('--client.base-url <url>', 'the server that loads them, and has the base model')
  .option('--model.name <name>', 'what it calls the base model')
  .option('--env.id <environment>', 'the environment to evaluate on')
  .option('-n, --num-examples <n>', 'held-out examples, -1 = all')
  .option('-r, --rollouts-per-example <n>', 'rollouts of each')
  .option(...grantOption)
  .option('--dry-run', 'say what would be done')
  .addHelpText('after', help)
  .action(async (options, command) => {
    const { weightsDir, 'client.baseUrl': baseUrl, 'model.name': model, 'env.id': environment, ...rest } = options;
    if (weightsDir === undefined) {
      command.help();
      return;
    }
    const env = environment === undefined ? {} : { env: environment.split(',') };
    process.exitCode = await evaluateWeights({ ...rest, ...env, weightsDir, baseUrl, model });
  })
  .addCommand(checkpointsCommand)
  .addCommand(scheduleCommand)
  .addCommand(runCommand)
  .addCommand(listCommand)
  .addCommand(showCommand)
  .addCommand(compareCommand)
  .addCommand(tuiCommand);
