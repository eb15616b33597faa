import { z } from 'zod';
import { budgetOfSearch, budgetSpec } from '../settings/budgets.ts';
import { withNames } from '../settings/environments.ts';
import { GepaSpec, limited, search, tuning } from './gepa-spec.ts';
import { access, accessSpec } from '../models/model-access.ts';
import { accessDefaults } from '../../core/eval/model-access.ts';
import type { Problem } from '../toml/problems.ts';
import type { TomlFile } from '../toml/parse-toml.ts';
import { type FileOptions, readFile } from '../toml/read-file.ts';
import { reportSecrets } from '../toml/report-secrets.ts';
import type { Reporter } from '../toml/reporter.ts';
import {
  requestSampling,
  type RequestSampling,
  samplingWarnings,
  withTemplateSwitches,
} from '../evaluations/request-sampling.ts';
import { inSpec, optionalTable, setting, table, tableType } from '../settings/setting.ts';
import { args, concurrency, environmentId, flag, passedVariables, text, whole } from '../toml/values.ts';

/** Files of `gepa run`, in the words of verifiers' `vf-gepa`. */

const environment = {
  env_id: setting(environmentId(), 'an environment to optimize for'),
  id: setting(environmentId(), 'another name for `env_id`'),
  env_args: setting(args(), 'of its loader'),
  args: setting(args(), 'another name for `env_args`'),
  extra_env_kwargs: setting(args(), 'of its constructor', { neutral: {} }),
  env_vars: setting(passedVariables(), 'names of environment variables that it sees', { neutral: [] }),
};
const moved = {
  max_concurrent: setting(concurrency(), 'rollouts at once', { neutral: 32 }),
  seed: setting(whole(0), 'of what is drawn', { neutral: 0 }),
};
/** The older place of settings in [gepa] and [sampling]. */
const execution = { ...moved, sampling_args: setting(requestSampling(), 'another place for `[sampling]`') };
const { model, endpoints_path, api_key_var, api_base_url, provider } = access;
const top = {
  run_dir: setting(text(), 'where results go'),
  save_results: setting(flag(), 'whether results are kept', { neutral: true, as: 'savesResults' }),
  reflection_model: setting(
    text(),
    'proposes prompts: a model’s id or an alias of the registry; the same model when missing',
  ),
};

const GepaFile = tableType({
  model,
  endpoints_path,
  api_key_var,
  api_base_url,
  provider,
  env_dir_path: setting(text(), 'where environments of the project lie, from the working folder'),
  ...top,
  verbose: setting(flag(), 'nothing'),
  tui: setting(flag(), 'nothing'),
  sampling: setting(requestSampling(), 'request fields of rollouts'),
  budget: budgetOfSearch,
  ...limited,
  execution: optionalTable(execution),
  gepa: table({ ...search, ...moved, ...tuning }),
}).extend({
  env: z
    .union([tableType(environment), z.array(tableType(environment))])
    .meta({ expected: 'an environment, [env], or several, [[env]]' })
    .optional(),
});
type GepaFile = z.infer<typeof GepaFile>;

const synonyms = {
  envs: 'env',
  environment: 'env',
  max_metric_calls: 'max_calls',
  budget: 'max_calls',
  reflection_minibatch_size: 'minibatch_size',
  teacher_model: 'reflection_model',
  sampling_args: 'sampling',
  base_url: 'api_base_url',
};

export type ParsedGepaFile =
  | { readonly ok: true; readonly spec: GepaSpec; readonly warnings: string[] }
  | { readonly ok: false; readonly problems: Problem[] };

/** Reads a file of prompt optimization. Reports all errors at once. */
export function parseGepaFile(source: string | TomlFile, options: FileOptions): ParsedGepaFile {
  const read = readFile(source, options, { schema: GepaFile, synonyms });
  if (!read.ok) return read;
  const { reporter } = read;
  reportSecrets(read.written, reporter);
  const file = read.table as GepaFile | undefined;
  const environments = file === undefined ? [] : environmentsOf(file, reporter);
  if (file !== undefined) reportTwice(file, reporter);
  if (file !== undefined) reportComponents(file, reporter);
  if (file !== undefined) reportBudget(file, reporter);
  if (file === undefined || reporter.problems.length > 0) return { ok: false, problems: reporter.inOrder() };
  const { gepa, execution = {} } = file;
  const sampling = (file.sampling ?? execution.sampling_args ?? {}) as RequestSampling;
  const { components, ...searched } = inSpec(search, gepa);
  const spec: GepaSpec = {
    schemaVersion: 1,
    environments,
    environmentsFolder: file.env_dir_path ?? accessDefaults.environmentsFolder,
    model: accessSpec(file),
    ...inSpec(top, file),
    sampling: withTemplateSwitches(sampling),
    ...searched,
    ...inSpec(moved, { ...execution, ...gepa }),
    components: [...new Set(components)],
    tuning: inSpec(tuning, gepa),
    ...inSpec(limited, file),
    ...budgetSpec(file.budget),
  };
  return { ok: true, spec: GepaSpec.parse(spec), warnings: warningsOf(file) };
}

function environmentsOf({ env = [] }: GepaFile, reporter: Reporter): GepaSpec['environments'] {
  const list = Array.isArray(env) ? env : [env];
  if (list.length === 0 && !reporter.has(['env'])) {
    const expected = 'at least one environment: [env] or [[env]] with an env_id';
    reporter.add({ path: ['env'], expected, received: 'nothing' });
  }
  const entries = list.map((entry, i) => {
    const path = Array.isArray(env) ? ['env', i] : ['env'];
    const { env_id, id, env_args = {}, args: own = {}, extra_env_kwargs = {}, env_vars = [] } = entry;
    if (env_id !== undefined && id !== undefined) {
      const expected = 'only one of env_id and id: they are names of one field';
      reporter.addRelation(
        [
          [...path, 'id'],
          [...path, 'env_id'],
        ],
        { expected, received: 'both' },
      );
    }
    const both = Object.keys(own).filter((key) => Object.hasOwn(env_args, key));
    if (both.length > 0) {
      const expected = 'each argument in only one of args and env_args: they are names of one field';
      reporter.addRelation(
        [
          [...path, 'args'],
          [...path, 'env_args'],
        ],
        { expected, received: both.join(', ') },
      );
    }
    const found = env_id ?? id;
    const isSaid = reporter.has([...path, 'env_id']) || reporter.has([...path, 'id']);
    if (found === undefined && !isSaid) {
      const expected = 'env_id = "…": an environment such as "reverse-text" or "owner/reverse-text"';
      reporter.add({ path: [...path, 'env_id'], expected, received: 'nothing' });
    }
    return { id: found ?? 'x', args: { ...env_args, ...own }, extraKwargs: extra_env_kwargs, variables: env_vars };
  });
  return withNames(entries);
}

/** One prompt for all environments, or one for each: not both. */
function reportComponents({ gepa: { components = [] } }: GepaFile, reporter: Reporter): void {
  if (!components.includes('system_prompt') || !components.includes('system_prompts')) return;
  const expected = 'one of system_prompt (the same for all environments) and system_prompts (one for each)';
  reporter.add({ path: ['gepa', 'components'], expected, received: 'both' });
}

/** What a call may cost is reserved before it: its answer needs a bound, and money a price of each model. */
function reportBudget(file: GepaFile, reporter: Reporter): void {
  const { budget, prices, reflection_model: reflection, reflection_prices: ofReflection } = file;
  if (budget === undefined) return;
  const sampling = file.sampling ?? file.execution?.sampling_args ?? {};
  const isBounded = ['max_tokens', 'max_completion_tokens'].some((key) => typeof sampling[key] === 'number');
  const say = (path: string, expected: string) => reporter.addRelation([path.split('.'), ['budget']], { expected, received: 'nothing' }); // prettier-ignore
  if (!isBounded) say('sampling.max_tokens', 'most tokens of an answer beside [budget]: a call is reserved before it is made'); // prettier-ignore
  if (budget.money === undefined) return;
  if (prices === undefined)
    say('prices', 'prices = { input = …, output = … } beside budget.money, US dollars of a million tokens; 0 where it costs nothing'); // prettier-ignore
  if (reflection !== undefined && reflection !== file.model && ofReflection === undefined)
    say('reflection_prices', `what ${reflection} costs beside budget.money, as prices = { input = …, output = … }`);
}

/** Reports settings of [execution] that repeat others. */
function reportTwice({ gepa, execution = {}, sampling }: GepaFile, reporter: Reporter): void {
  for (const key of ['max_concurrent', 'seed'] as const) {
    if (gepa[key] === undefined || execution[key] === undefined) continue;
    const expected = `${key} in [gepa] alone: [execution] is its older place`;
    reporter.add({ path: ['execution', key], expected, received: 'both' });
  }
  if (sampling === undefined || execution.sampling_args === undefined) return;
  const expected = 'request fields in [sampling] alone: [execution] sampling_args is their older place';
  reporter.add({ path: ['execution', 'sampling_args'], expected, received: 'both' });
}

function warningsOf({ execution, sampling, verbose, tui }: GepaFile): string[] {
  const moved =
    '[execution] is deprecated: write max_concurrent and seed in [gepa], and what is in sampling_args in [sampling]';
  return [
    ...(execution === undefined ? [] : [moved]),
    ...(verbose === undefined ? [] : ['verbose has no effect here: what is logged does not depend on it']),
    ...(tui === undefined ? [] : ['tui has no effect here: a terminal gets the live view, --plain gives lines']),
    ...(sampling === undefined ? [] : samplingWarnings(sampling, ['sampling'])),
    ...(execution?.sampling_args === undefined
      ? []
      : samplingWarnings(execution.sampling_args, ['execution', 'sampling_args'])),
  ];
}
