import { Command, Option } from '@commander-js/extra-typings';
import { RatchetError } from '../../core/errors.ts';
import { headersFrom } from '../../config/models/model-access.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { tellingOptions } from '../follow/audience.ts';
import type { ModelOptions } from '../typed/model-options.ts';
import { requirePairs } from '../typed/option-pairs.ts';
import { grantOption } from '../typed/store-option.ts';
import { namesOf } from '../output/names-of.ts';

/** Options of `ratchet eval run`: those of vf-eval and `prime eval run`, and further ones. */
export interface EvalRunOptions extends ModelOptions {
  readonly systemPrompt?: string;
  readonly envPath?: string;
  readonly apiClientType?: string;
  readonly header?: readonly string[];
  readonly headerFromState?: readonly string[];
  readonly numExamples?: string;
  readonly rolloutsPerExample?: string;
  readonly shuffle?: boolean;
  readonly shuffleSeed?: string;
  readonly outputDir?: string;
  readonly evalName?: string;
  readonly stateColumns?: string;
  readonly resume?: string | true;
  readonly independentScoring?: boolean;
  readonly timeout?: string;
  readonly maxRetries?: string;
  readonly numWorkers?: string;
  readonly abbreviatedSummary?: boolean;
  readonly saveToHfHub?: boolean;
  readonly hosted?: boolean;
  readonly run?: string;
  readonly step?: string;
  readonly serve?: string | true;
  readonly store?: string;
  readonly grant?: readonly string[];
  readonly pool?: string;
}

/** The command with its options and no action. */
export function evalRunCommand() {
  const command = new Command('run')
    .description('evaluate a model, or a checkpoint of a run, on environments; continues where it was interrupted')
    .argument(
      '<environment|file>',
      "an environment's id, several with commas between them, or a TOML file with [[eval]]",
    )
    .option('-m, --model <name>', 'a model, an alias of the endpoints file, or a folder with a model of this machine')
    .option('-b, --api-base-url <url>', 'where the model is served')
    .option('-k, --api-key-var <name>', 'the environment variable with the key')
    .option('-p, --provider <name>', 'whose API: prime, openrouter, openai, anthropic, deepseek, …, local, vllm')
    .option('-e, --endpoints-path <file>', 'aliases of models (default: ./configs/endpoints.toml)')
    .option('--api-client-type <type>', 'how the server is spoken to: chat completions')
    .option('--header <header...>', 'further headers, "NAME: value"')
    .option('--header-from-state <header...>', 'known, without effect: X-Session-ID names the rollout')
    .option('-n, --num-examples <n>', "held-out examples, -1 = all (default: the environment's, else 5)")
    .option('-r, --rollouts-per-example <n>', "rollouts of each (default: the environment's, else 3)")
    .option('-c, --max-concurrent <n>', 'rollouts at once, -1 = no bound (default: 32)')
    .option('-t, --max-tokens <n>', 'tokens of each turn')
    .option('-T, --temperature <x>', 'of the sampling')
    .option('-S, --sampling-args <json>', 'further request fields; they override -t and -T')
    .option('-a, --env-args <json>', "the environment's arguments")
    .option('-x, --extra-env-kwargs <json>', 'set on a verifiers environment once it is loaded')
    .option(
      '--system-prompt <file>',
      "in place of the system prompt of the environment's examples: a file, such as one that `ratchet gepa run` wrote, or a text of several words",
    )
    .option('--pass-env <names>', 'variables that it may see beside the usual ones, as in OPENAI_API_KEY,HF_TOKEN')
    .option('--env-dir-path <folder>', 'where environments of the project are (default: ./environments)')
    .addOption(new Option('--env-path <folder>', 'the same').hideHelp())
    .option('--builtin', 'OWNER/NAME is the environment NAME that comes with Ratchet')
    .option('--shuffle', 'examples in another order')
    .option('--shuffle-seed <n>', 'which order (default: 0)')
    .option('-i, --independent-scoring', 'score every rollout by itself')
    .option('--timeout <seconds>', 'of a rollout')
    .option('--max-retries <n>', 'of a rollout that its environment spoiled (default: 3)')
    .option('-o, --output-dir <folder>', 'where results go: evals/ENV--MODEL/ID below it (default: outputs)')
    .option('--eval-name <name>', 'in place of the environment in the name of the folder')
    .option(
      '-C, --state-columns <names>',
      "columns of a rollout's state that its row has as well, as in trajectory,turn (verifiers 0.3)",
    )
    .option(
      '-R, --resume [path]',
      'continue with an evaluation: the newest that has something left to do, or one by its folder',
    )
    .option('--fresh', 'begin anew, also where one was interrupted')
    .option('-A, --abbreviated-summary', 'without an example')
    .option('--run <run>', 'evaluate a checkpoint of this run, on its own servers, token by token')
    .option('--step <n>', 'with --run: of this step (default: the newest)')
    .option('--serve [folder]', 'start a server for the time of the evaluation: over this folder, or over --run')
    .option('--store <uri>', 'with --run: where runs are (default: file:outputs)')
    .option('--pool <name>', 'the pool whose rollout workers play it: `ratchet worker --pool`')
    .option(...grantOption)
    .option(...tellingOptions.json)
    .option('--plain', 'as always: lines')
    .option('--dry-run', 'say what would be done')
    .option('-s, --save-results', 'accepted: results are always stored')
    .option('-v, --verbose', 'known, without effect')
    .option('-w, --num-workers <n>', 'known, without effect')
    .option('-N, --no-interleave-scoring', 'known, without effect')
    .option('-d, --disable-tui', 'known, without effect')
    .option('-f, --fullscreen', 'known, without effect')
    .option('--disable-env-server', 'known, without effect')
    .option('--skip-upload', 'as always: nothing is uploaded')
    .addOption(new Option('-H, --save-to-hf-hub', 'nothing is uploaded').hideHelp())
    .addOption(new Option('-D, --hf-hub-dataset-name <name>', 'nothing is uploaded').hideHelp())
    .addOption(new Option('--heartbeat-url <url>', 'known, without effect').hideHelp())
    .addOption(new Option('--hosted', 'not here').hideHelp());
  return requirePairs(command, {
    apart: [
      ['--resume', '--fresh'],
      ['--serve', '--api-base-url'],
      ['--serve', '--provider'],
    ],
    beside: [['--step', '--run']],
  });
}

/** Typed options as settings of a file of evaluations. Throws `ConfigInvalid`. */
export function settingsOf(options: EvalRunOptions): Record<string, JsonValue> {
  refuseElsewhere(options);
  const given: Record<string, JsonValue | undefined> = {
    env_args: readTable('-a', options.envArgs),
    extra_env_kwargs: readTable('-x', options.extraEnvKwargs),
    system_prompt: options.systemPrompt,
    env_vars: options.passEnv === undefined ? undefined : namesOf(options.passEnv),
    env_dir_path: options.envDirPath ?? options.envPath,
    endpoints_path: options.endpointsPath,
    provider: options.provider,
    model: options.model,
    api_base_url: options.apiBaseUrl,
    api_key_var: options.apiKeyVar,
    api_client_type: options.apiClientType,
    headers: options.header === undefined ? undefined : headersFrom([...options.header]),
    num_examples: readNumber('-n', options.numExamples),
    rollouts_per_example: readNumber('-r', options.rolloutsPerExample),
    shuffle: options.shuffle === true || options.shuffleSeed !== undefined ? true : undefined,
    shuffle_seed: readNumber('--shuffle-seed', options.shuffleSeed),
    max_concurrent: readNumber('-c', options.maxConcurrent),
    max_tokens: readNumber('-t', options.maxTokens),
    temperature: readNumber('-T', options.temperature),
    sampling: readTable('-S', options.samplingArgs),
    output_dir: options.outputDir,
    name: options.evalName,
    state_columns: options.stateColumns?.split(',').map((name) => name.trim()),
    independent_scoring: options.independentScoring,
    timeout: readNumber('--timeout', options.timeout),
    max_retries: readNumber('--max-retries', options.maxRetries),
    ...(typeof options.resume === 'string' ? { resume_path: options.resume } : {}),
  };
  return Object.fromEntries(
    Object.entries(given).filter((entry): entry is [string, JsonValue] => entry[1] !== undefined),
  );
}

function refuseElsewhere({ hosted, saveToHfHub }: EvalRunOptions): void {
  if (hosted) {
    throw new RatchetError(
      'ConfigInvalid',
      "--hosted runs an evaluation on Prime Intellect's machines: that is what their own command does (prime eval run --hosted). Here it runs on the workers of this folder, or of TEMPORAL_ADDRESS.",
    );
  }
  if (saveToHfHub) {
    throw new RatchetError(
      'ConfigInvalid',
      '--save-to-hf-hub: nothing is uploaded from here. results.jsonl is JSON lines, which huggingface-cli upload takes as it is.',
    );
  }
}

function readTable(option: string, text: string | undefined): Record<string, JsonValue> | undefined {
  if (text === undefined) return undefined;
  const refuse = (cause?: unknown): RatchetError =>
    new RatchetError(
      'ConfigInvalid',
      `${option}: expected a JSON object such as '{"key": 1}', got ${JSON.stringify(text)}.`,
      { cause },
    );
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw refuse(cause);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw refuse();
  return value as Record<string, JsonValue>;
}

function readNumber(option: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (Number.isFinite(value)) return value;
  throw new RatchetError('ConfigInvalid', `${option}: expected a number, got ${JSON.stringify(text)}.`);
}
