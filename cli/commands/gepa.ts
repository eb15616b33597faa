import { Command } from 'commander';
import { stillToCome } from '../still-to-come.ts';

const run = new Command('run')
  .description("optimize an environment's system prompt (still to come)")
  .argument('[environment|file]', 'an id, or a TOML file with [gepa]')
  .option('-a, --env-args <json>', "the environment's arguments")
  .option('-x, --extra-env-kwargs <json>', 'what is set on the environment once it is loaded')
  .option('-p, --env-dir-path <folder>', 'where environments are looked for', './environments')
  .option('-e, --endpoints-path <file>', 'aliases of models', './configs/endpoints.toml')
  .option('-m, --model <name>', 'the model whose prompt it is')
  .option('-M, --reflection-model <name>', 'the model that reflects; default: the same')
  .option('-b, --api-base-url <url>', 'where the models are served')
  .option('-k, --api-key-var <name>', 'the environment variable with the key')
  .option('-B, --max-calls <n>', 'rollouts in all', '500')
  .option('-n, --num-train <n>', 'examples to reflect on', '100')
  .option('-N, --num-val <n>', 'examples to choose by', '50')
  .option('--minibatch-size <n>', 'examples of one reflection', '3')
  .option('--perfect-score <x>', 'a minibatch with this score is passed over')
  .option('--state-columns <names...>', 'further columns to reflect on')
  .option('-c, --max-concurrent <n>', 'rollouts at once')
  .option('-S, --sampling-args <json>', 'further sampling parameters')
  .option('--seed <n>', 'of what is drawn')
  .option('-o, --run-dir <folder>', 'where results go')
  .option('--no-save', 'keep nothing')
  .option('-v, --verbose', 'say more')
  .option('--dry-run', 'say what would be done')
  .action(() => {
    throw stillToCome('gepa run', [
      'ratchet baseline FILE measures a model on its environments, with the prompt that they have',
      'ratchet train FILE trains the weights instead of the prompt',
    ]);
  });

export const gepaCommand = new Command('gepa').description('prompt optimization (still to come)').addCommand(run);
