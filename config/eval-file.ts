import { z } from 'zod';
import { groupRolloutsMax, rolloutTokensMax } from '../core/limits.ts';
import { accessFields, baseUrl, clientType, headerList, headerTable, provider, variableName } from './model-access.ts';
import { requestSampling } from './request-sampling.ts';
import {
  args,
  countOrAll,
  environmentId,
  environmentLabel,
  flag,
  passedVariables,
  positive,
  text,
  whole,
} from './values.ts';

/** The words of a file with evaluations, those of verifiers 0.3.1: `[[eval]]`, `[[ablation]]`, and what holds for all of them. */

const concurrency = () =>
  z.union([z.literal(-1), z.int().min(1)]).meta({ expected: 'an integer ≥ 1, or -1 for no bound' });
const workers = () => z.union([z.literal('auto'), z.int().min(1)]).meta({ expected: 'an integer ≥ 1, or "auto"' });

/** Of a single evaluation, or of all where they stand at the top of the file. */
const settings = {
  env_dir_path: text(),
  endpoints_path: accessFields.endpoints_path,
  extra_env_kwargs: args(),
  provider: provider(),
  endpoint_id: text(),
  model: accessFields.model,
  api_client_type: clientType(),
  api_key_var: variableName(),
  api_base_url: baseUrl(),
  header: headerList('value'),
  headers: headerTable(),
  header_from_state: headerList('column of the state'),
  headers_from_state: headerTable(),
  sampling: requestSampling(),
  sampling_args: requestSampling(),
  max_tokens: whole(1, rolloutTokensMax),
  temperature: z.number().min(0).meta({ expected: 'a number ≥ 0' }),
  num_examples: countOrAll('examples'),
  rollouts_per_example: whole(1, groupRolloutsMax),
  shuffle: flag(),
  shuffle_seed: whole(0),
  max_concurrent: concurrency(),
  independent_scoring: flag(),
  max_retries: whole(0),
  num_workers: workers(),
  disable_env_server: flag(),
  timeout: positive(),
  verbose: flag(),
  debug: flag(),
  disable_tui: flag(),
  output_dir: text(),
  state_columns: z.array(text()).meta({ expected: 'a list of texts' }),
  save_results: flag(),
  save_every: z.int().meta({ expected: 'an integer' }),
  resume: flag(),
  resume_path: text(),
  save_to_hf_hub: flag(),
  hf_hub_dataset_name: text(),
  args: args(),
  env_args: args(),
  env_vars: passedVariables(),
  taskset: args(),
  harness: args(),
};
const identity = { id: environmentId(), env_id: environmentId() };
const entry = { ...identity, name: environmentLabel(), ...settings };

/** Tables of free keys, each with the values it takes in turn. */
export const sweptTables = ['env_args', 'args', 'taskset', 'harness'] as const;
const sweptTable = () =>
  z
    .record(z.string(), z.array(z.json()).min(1))
    .meta({ expected: 'a table of lists: each key with the values it takes in turn' });
const swept = Object.fromEntries(
  Object.entries(entry).map(([key, schema]): [string, z.ZodType] => {
    if ((sweptTables as readonly string[]).includes(key)) return [key, sweptTable().optional()];
    const expected = `a list of values to take in turn, each ${schema.meta()?.expected ?? 'as in [[eval]]'}`;
    return [key, z.array(schema).min(1).meta({ expected }).optional()];
  }),
);

export const evalEntry = z.object(entry).partial().strict();
export type EvalEntry = z.infer<typeof evalEntry>;

export const EvalFile = z.strictObject({
  ...z.object(settings).partial().shape,
  eval: z.array(evalEntry).meta({ expected: 'a list of tables: [[eval]]' }).optional(),
  ablation: z
    .array(evalEntry.extend({ sweep: z.strictObject(swept).optional() }).strict())
    .meta({ expected: 'a list of tables: [[ablation]]' })
    .optional(),
});
export type EvalFile = z.infer<typeof EvalFile>;

export const evalSynonyms = {
  evals: 'eval',
  ablations: 'ablation',
  environment: 'id',
  env: 'id',
  environment_id: 'id',
  env_kwargs: 'env_args',
  n: 'num_examples',
  rollouts: 'rollouts_per_example',
  concurrency: 'max_concurrent',
  base_url: 'api_base_url',
  key_var: 'api_key_var',
  client_type: 'api_client_type',
  max_completion_tokens: 'max_tokens',
};

/** Accepted, said once, and without effect here. */
export const evalIgnored: Readonly<Record<string, string>> = {
  verbose: 'what is logged does not depend on it',
  debug: 'what is logged does not depend on it',
  disable_tui: 'say --plain on the command line instead',
  disable_env_server: 'environments run beside the rollout workers',
  save_every: 'every rollout is stored as soon as it is finished',
};
