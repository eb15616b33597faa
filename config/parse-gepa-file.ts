import { z } from 'zod';
import { promptComponents } from '../core/gepa/prompt-parts.ts';
import { frontierTypes, selectionStrategies } from '../core/gepa/tuning.ts';
import { withNames } from './settings/environments.ts';
import { GepaSpec } from './gepa-spec.ts';
import { accessFields, provider } from './model-access.ts';
import { accessDefaults } from './model-access-spec.ts';
import type { Problem } from './problems.ts';
import type { TomlFile } from './parse-toml.ts';
import { type FileOptions, readFile } from './read-file.ts';
import { reportSecrets } from './report-secrets.ts';
import type { Reporter } from './reporter.ts';
import { requestSampling, type RequestSampling, samplingWarnings, withTemplateSwitches } from './request-sampling.ts';
import { anyNumber, args, choice, countOrAll, environmentId, flag, passedVariables, text, whole } from './values.ts';

/** Files of `gepa run`, in the words of verifiers' `vf-gepa`. */

const environment = z.strictObject({
  env_id: environmentId().optional(),
  id: environmentId().optional(),
  env_args: args().optional(),
  args: args().optional(),
  extra_env_kwargs: args().optional(),
  env_vars: passedVariables().optional(),
});
const concurrency = () =>
  z.union([z.literal(-1), z.int().min(1)]).meta({ expected: 'an integer ≥ 1, or -1 for no bound' });

const GepaFile = z.strictObject({
  model: accessFields.model.optional(),
  reflection_model: accessFields.model.optional(),
  endpoints_path: accessFields.endpoints_path.optional(),
  api_key_var: accessFields.api_key_var.optional(),
  api_base_url: accessFields.api_base_url.optional(),
  provider: provider().optional(),
  env_dir_path: text().optional(),
  run_dir: text().optional(),
  save_results: flag().optional(),
  verbose: flag().optional(),
  tui: flag().optional(),
  env: z
    .union([environment, z.array(environment)])
    .meta({ expected: 'an environment, [env], or several, [[env]]' })
    .optional(),
  gepa: z
    .strictObject({
      max_calls: whole(1).default(500),
      minibatch_size: whole(1).default(3),
      perfect_score: anyNumber().optional(),
      state_columns: z.array(text()).meta({ expected: 'a list of texts' }).default([]),
      num_train: countOrAll('examples').default(100),
      num_val: countOrAll('examples').default(50),
      max_concurrent: concurrency().optional(),
      seed: whole(0).optional(),
      classic: flag().optional(),
      num_test: countOrAll('examples').optional(),
      initial_prompt: text().optional(),
      components: z
        .array(choice(...promptComponents))
        .min(1)
        .meta({ expected: `a list of ${promptComponents.join(', ')}` })
        .optional(),
      merge: flag().optional(),
      screen: countOrAll('validation examples').optional(),
      proposals: whole(1).optional(),
      parallel: whole(1).optional(),
      candidate_selection_strategy: z
        .preprocess((value) => (Array.isArray(value) ? value : [value]), z.array(choice(...selectionStrategies)).min(1))
        .meta({ expected: `one of ${selectionStrategies.join(', ')}, or a list of them to draw from` })
        .optional(),
      frontier_type: choice(...frontierTypes).optional(),
    })
    .prefault({}),
  sampling: requestSampling().optional(),
  /** The older place of what is in [gepa] and [sampling]. */
  execution: z
    .strictObject({
      max_concurrent: concurrency().optional(),
      seed: whole(0).optional(),
      sampling_args: requestSampling().optional(),
    })
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
const concurrencyDefault = 32;

export type ParsedGepaFile =
  | { readonly ok: true; readonly spec: GepaSpec; readonly warnings: string[] }
  | { readonly ok: false; readonly problems: Problem[] };

/** Reads a file of prompt optimization. Tells everything that is wrong with it at once. */
export function parseGepaFile(source: string | TomlFile, options: FileOptions): ParsedGepaFile {
  const read = readFile(source, options, { schema: GepaFile, synonyms });
  if (!read.ok) return read;
  const { reporter } = read;
  reportSecrets(read.written, reporter);
  const file = read.table as GepaFile | undefined;
  const environments = file === undefined ? [] : environmentsOf(file, reporter);
  if (file !== undefined) reportTwice(file, reporter);
  if (file !== undefined) reportComponents(file, reporter);
  if (file === undefined || reporter.problems.length > 0) return { ok: false, problems: reporter.inOrder() };
  const { gepa, execution = {} } = file;
  const sampling = (file.sampling ?? execution.sampling_args ?? {}) as RequestSampling;
  const spec: GepaSpec = {
    schemaVersion: 1,
    environments,
    environmentsFolder: file.env_dir_path ?? accessDefaults.environmentsFolder,
    model: {
      endpointId: null,
      model: file.model ?? accessDefaults.model,
      endpointsPath: file.endpoints_path ?? accessDefaults.endpointsPath,
      provider: file.provider ?? null,
      apiBaseUrl: file.api_base_url ?? null,
      apiKeyVar: file.api_key_var ?? null,
      clientType: null,
      headers: {},
      headersFromState: { ...accessDefaults.headersFromState },
    },
    reflectionModel: file.reflection_model ?? null,
    sampling: withTemplateSwitches(sampling),
    maxCalls: gepa.max_calls,
    minibatchSize: gepa.minibatch_size,
    perfectScore: gepa.perfect_score ?? null,
    stateColumns: gepa.state_columns,
    numTrain: gepa.num_train,
    numVal: gepa.num_val,
    maxConcurrent: gepa.max_concurrent ?? execution.max_concurrent ?? concurrencyDefault,
    seed: gepa.seed ?? execution.seed ?? 0,
    classic: gepa.classic ?? false,
    numTest: gepa.num_test ?? 0,
    initialPrompt: gepa.initial_prompt ?? null,
    components: [...new Set(gepa.components ?? ['system_prompt' as const])],
    merge: gepa.merge ?? false,
    tuning: tuningOf(gepa),
    runDir: file.run_dir ?? null,
    savesResults: file.save_results ?? true,
  };
  return { ok: true, spec: GepaSpec.parse(spec), warnings: warningsOf(file) };
}

function tuningOf(gepa: GepaFile['gepa']): GepaSpec['tuning'] {
  const { screen, proposals, parallel, candidate_selection_strategy: selection, frontier_type: frontier } = gepa;
  return {
    ...(screen === undefined ? {} : { screen }),
    ...(proposals === undefined ? {} : { proposals }),
    ...(parallel === undefined ? {} : { parallel }),
    ...(selection === undefined ? {} : { selection }),
    ...(frontier === undefined ? {} : { frontier }),
  };
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

/** One prompt for all, or one for each: not both. */
function reportComponents({ gepa: { components = [] } }: GepaFile, reporter: Reporter): void {
  if (!components.includes('system_prompt') || !components.includes('system_prompts')) return;
  const expected = 'one of system_prompt (the same for all environments) and system_prompts (one for each)';
  reporter.add({ path: ['gepa', 'components'], expected, received: 'both' });
}

/** What [execution] says again. */
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
