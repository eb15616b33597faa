import { Command } from '@commander-js/extra-typings';
import { providers } from '../../core/eval/model-access.ts';
import { frontierTypes, selectionStrategies } from '../../core/gepa/tuning.ts';
import { tellingOptions } from '../follow/audience.ts';
import type { ModelOptions } from '../typed/model-options.ts';

/** Options of `ratchet gepa run`: those of vf-gepa and `prime gepa run`, and further ones. */
export interface GepaRunOptions extends ModelOptions {
  readonly reflectionModel?: string;
  readonly maxCalls?: string;
  readonly maxReflections?: string;
  readonly numTrain?: string;
  readonly numVal?: string;
  readonly minibatchSize?: string;
  readonly perfectScore?: string;
  readonly stateColumns?: readonly string[];
  readonly initialPrompt?: string;
  readonly components?: readonly string[];
  readonly merge?: boolean;
  readonly screen?: string;
  readonly proposals?: string;
  readonly parallel?: string;
  readonly candidateSelection?: readonly string[];
  readonly frontier?: string;
  readonly seed?: string;
  readonly runDir?: string;
  readonly save: boolean;
  readonly classic?: boolean;
  readonly eval?: string | true;
  readonly yes?: boolean;
  readonly pool?: string;
}

/** The command with its options and no action. */
export function gepaRunCommand() {
  return new Command('run')
    .description('look for a better system prompt of an environment (GEPA); continues where it was interrupted')
    .argument('<environment|file>', "an environment's id, several with commas between them, or a TOML file with [gepa]")
    .option('-m, --model <name>', 'the model whose prompt it is: a name, or an alias of the endpoints file')
    .option('-M, --reflection-model <name>', 'the model that writes prompts anew (default: the same)')
    .option('-b, --api-base-url <url>', 'where the models are served')
    .option('-k, --api-key-var <name>', 'the environment variable with the key')
    .option('--provider <name>', 'whose API: prime, openrouter, openai, anthropic, deepseek, …, local, vllm')
    .option('-e, --endpoints-path <file>', 'aliases of models (default: ./configs/endpoints.toml)')
    .option(
      '-B, --max-calls <n>',
      'rollouts that are scored in all, never exceeded; reflections are not among them (default: 500)',
    )
    .option(
      '--max-reflections <n>',
      'prompts that the reflection model writes in all, never exceeded (default: as many as --max-calls)',
    )
    .option('-n, --num-train <n>', 'examples to reflect on, -1 = all (default: 100)')
    .option('-N, --num-val <n>', 'held-out examples to choose by, -1 = all (default: 50)')
    .option('--minibatch-size <n>', 'examples of one reflection (default: 3)')
    .option('--perfect-score <x>', 'minibatches whose every reward is at least this are not reflected on')
    .option(
      '--state-columns <names...>',
      'columns that the reflection sees as well: of the rollout, its rewards, its example',
    )
    .option('--initial-prompt <text>', "the first prompt (default: the environment's system prompt)")
    .option(
      '--components <names...>',
      'what is rewritten: system_prompt, system_prompts (one of each environment), tool_descriptions (default: system_prompt)',
    )
    .option('--merge', 'candidates that changed different components are merged as well')
    .option('--screen <n>', 'validation examples that tell candidates apart, -1 = all (default: a tenth, at least 5)')
    .option('--proposals <n>', 'new prompts of one minibatch (default: a 62nd of the budget, from 2 to 8)')
    .option('--parallel <n>', 'minibatches side by side (default: 1, up to 3 while nothing is found)')
    .option(
      '--candidate-selection <names...>',
      `who is written anew: ${selectionStrategies.join(', ')}; of several one is drawn each time (default: pareto)`,
    )
    .option('--frontier <type>', `what candidates are compared by: ${frontierTypes.join(', ')} (default: instance)`)
    .option('-c, --max-concurrent <n>', 'rollouts at once, -1 = no bound (default: 32)')
    .option('-t, --max-tokens <n>', 'tokens of each turn')
    .option('-T, --temperature <x>', 'of the sampling')
    .option('-S, --sampling-args <json>', 'further request fields')
    .option('-a, --env-args <json>', "the environment's arguments")
    .option('-x, --extra-env-kwargs <json>', 'set on a verifiers environment once it is loaded')
    .option('--pool <name>', 'the pool whose rollout workers play it: `ratchet worker --pool`')
    .option('--pass-env <names>', 'variables that they may see beside the usual ones, as in OPENAI_API_KEY,HF_TOKEN')
    .option(
      '-p, --env-dir-path <folder>',
      'where environments of the project are (default: ./environments); the name of a provider, as `prime eval run` takes it, is --provider',
    )
    .option('--builtin', 'OWNER/NAME is the environment NAME that comes with Ratchet')
    .option('--seed <n>', 'of everything that is drawn (default: 0)')
    .option('--classic', "gepa's own search, with a budget that is never exceeded")
    .option(
      '--eval [n]',
      'score the first and the best prompt on further examples at the end, beyond the calls of --max-calls (default: 50)',
    )
    .option('-o, --run-dir <folder>', 'where results go (default: outputs/gepa/ENV--MODEL/ID)')
    .option('--no-save', 'keep the best prompt alone, and what a retry needs')
    .option('--yes', 'a budget too small to try much is meant')
    .option('--fresh', 'search anew, also where a search was interrupted')
    .option(...tellingOptions.json)
    .option('--dry-run', 'say what would be done')
    .option('-v, --verbose', 'known, without effect')
    .option('-u, --tui', 'known, without effect');
}

const examplesToCompareOn = '50';

/** Typed options as dotted keys of a file with [gepa]. */
export function overridesOf(options: GepaRunOptions): Record<string, string> {
  const { stateColumns, components, envDirPath } = options;
  // A folder with a provider's name is written as ./openai.
  const isProvider = providers.some((name) => name === envDirPath);
  const listed = (names: readonly string[]) => JSON.stringify(names.flatMap((name) => name.split(',')));
  const given: Record<string, string | undefined> = {
    'env.env_args': options.envArgs,
    'env.extra_env_kwargs': options.extraEnvKwargs,
    env_dir_path: isProvider ? undefined : envDirPath,
    endpoints_path: options.endpointsPath,
    provider: options.provider ?? (isProvider ? envDirPath : undefined),
    model: options.model,
    reflection_model: options.reflectionModel,
    api_base_url: options.apiBaseUrl,
    api_key_var: options.apiKeyVar,
    'gepa.max_calls': options.maxCalls,
    'gepa.max_reflections': options.maxReflections,
    'gepa.num_train': options.numTrain,
    'gepa.num_val': options.numVal,
    'gepa.minibatch_size': options.minibatchSize,
    'gepa.perfect_score': options.perfectScore,
    'gepa.state_columns': stateColumns && listed(stateColumns),
    'gepa.components': components && listed(components),
    'gepa.merge': options.merge === true ? 'true' : undefined,
    'gepa.screen': options.screen,
    'gepa.proposals': options.proposals,
    'gepa.parallel': options.parallel,
    'gepa.candidate_selection_strategy': options.candidateSelection && listed(options.candidateSelection),
    'gepa.frontier_type': options.frontier,
    'gepa.initial_prompt': options.initialPrompt,
    'gepa.max_concurrent': options.maxConcurrent,
    'gepa.seed': options.seed,
    'gepa.classic': options.classic === true ? 'true' : undefined,
    'gepa.num_test': options.eval === true ? examplesToCompareOn : options.eval,
    'sampling.max_tokens': options.maxTokens,
    'sampling.temperature': options.temperature,
    sampling: options.samplingArgs,
    run_dir: options.runDir,
    save_results: options.save ? undefined : 'false',
  };
  return Object.fromEntries(Object.entries(given).filter((entry): entry is [string, string] => entry[1] !== undefined));
}
