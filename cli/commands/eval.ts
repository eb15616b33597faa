import { Command } from 'commander';
import { compareCommand } from '../eval/compare.ts';
import { showCommand } from '../eval/show.ts';
import { tuiCommand } from '../eval/tui.ts';
import { stillToCome } from '../still-to-come.ts';

const today = [
  '[eval] in a run file evaluates while the run trains; ratchet metrics RUN shows it',
  'ratchet baseline FILE measures a model on its environments before it is trained',
];

const run = new Command('run')
  .description('evaluate models on environments (still to come)')
  .argument('[environment|file]', 'an id, or a TOML file with [[eval]]')
  .option('-a, --env-args <json>', "the environment's arguments")
  .option('-x, --extra-env-kwargs <json>', 'what is set on the environment once it is loaded')
  .option('--env-dir-path <folder>', 'where environments are looked for', './environments')
  .option('-e, --endpoints-path <file>', 'aliases of models', './configs/endpoints.toml')
  .option('-p, --provider <name>', 'whose API: prime, openrouter, openai, vllm, …')
  .option('-m, --model <name>', 'a model, or an alias of the endpoints file')
  .option('-b, --api-base-url <url>', 'where the model is served')
  .option('-k, --api-key-var <name>', 'the environment variable with the key')
  .option('--api-client-type <type>', 'how the server is spoken to')
  .option('--header <header...>', 'further headers')
  .option('-n, --num-examples <n>', 'examples, -1 = all')
  .option('-r, --rollouts-per-example <n>', 'rollouts of each')
  .option('--shuffle', 'examples in another order')
  .option('--shuffle-seed <n>', 'which order')
  .option('-c, --max-concurrent <n>', 'rollouts at once')
  .option('-t, --max-tokens <n>', 'tokens per turn')
  .option('-T, --temperature <x>', 'of the sampling')
  .option('-S, --sampling-args <json>', 'further sampling parameters')
  .option('-o, --output-dir <folder>', 'where results go')
  .option('-v, --verbose', 'say more')
  .option('-N, --num-workers <n>', 'processes of the environment')
  .option('-C, --state-columns <names>', 'further columns of the results')
  .option('-s, --save-results', 'keep the results')
  .option('-R, --resume [path]', 'go on with an evaluation')
  .option('-i, --independent-scoring', 'score every rollout by itself')
  .option('--timeout <seconds>', 'of a rollout')
  .option('--max-retries <n>', 'of a rollout that failed')
  .option('--skip-upload', 'keep the results here')
  .option('--hosted', 'run it elsewhere')
  .option('--dry-run', 'say what would be done')
  .action(() => {
    throw stillToCome('eval run', today);
  });

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
  .addCommand(run)
  .addCommand(showCommand)
  .addCommand(compareCommand)
  .addCommand(tuiCommand);
