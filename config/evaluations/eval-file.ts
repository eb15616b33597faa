import { z } from 'zod';
import { deadlineSecondsMax, groupRolloutsMax, rolloutTokensMax } from '../../core/limits.ts';
import { access, headerList, ModelAccessSpec } from '../models/model-access.ts';
import { accessDefaults } from '../../core/eval/model-access.ts';
import { requestSampling } from './request-sampling.ts';
import { BudgetSpec, budgetSpec, budgetValue } from '../settings/budgets.ts';
import { setting, specFields, tableType } from '../settings/setting.ts';
import {
  args,
  atLeastZero,
  concurrency,
  countOrAll,
  environmentId,
  environmentLabel,
  flag,
  passedVariables,
  positive,
  prompt,
  text,
  texts,
  whole,
} from '../toml/values.ts';

/** Defaults, unless the environment's package has its own. */
export const evaluationDefaults = { numExamples: 5, rolloutsPerExample: 3, maxConcurrent: 32, maxRetries: 3 } as const;

/**
 * The words of a file with evaluations, as in verifiers 0.3.1: `[[eval]]`, `[[ablation]]`, and settings of all of them.
 */

export const evaluated = {
  args: setting(args(), 'of its loader', { neutral: {} }),
  extra_env_kwargs: setting(args(), 'of its constructor, beside the arguments of its loader', {
    neutral: {},
    as: 'extraKwargs',
  }),
  system_prompt: setting(
    prompt(),
    'in place of the system prompt of its examples: a text, or a file with it, as in `[[env]]`; "" = none',
    { isLeftOut: true },
  ),
  env_vars: setting(passedVariables(), 'names of environment variables that it sees beside the usual ones', {
    neutral: [],
    as: 'variables',
  }),
  env_dir_path: setting(text(), 'where environments of the project lie, from the working folder', {
    neutral: accessDefaults.environmentsFolder,
    as: 'folder',
  }),
  taskset: setting(args(), 'of a verifiers v1 environment'),
  harness: setting(args(), 'of a verifiers v1 environment'),
};
/** Amount of work, and how much of it is kept. */
export const course = {
  num_examples: setting(countOrAll('examples'), 'what the environment’s package says when missing, else 5'),
  rollouts_per_example: setting(whole(1, groupRolloutsMax), 'what the environment’s package says when missing, else 3'),
  shuffle: setting(flag(), 'whether examples are drawn', { neutral: false }),
  shuffle_seed: setting(whole(0), 'of the draw', { neutral: 0 }),
  max_concurrent: setting(concurrency(), 'rollouts at once', { neutral: evaluationDefaults.maxConcurrent }),
  independent_scoring: setting(flag(), 'each rollout is scored by itself, not with its group', { neutral: false }),
  max_retries: setting(whole(0), 'of a rollout that failed', { neutral: evaluationDefaults.maxRetries }),
  num_workers: setting(
    z.union([z.literal('auto'), z.int().min(1)]).meta({ expected: 'an integer ≥ 1, or "auto"' }),
    'one for every 256 rollouts at once when missing',
  ),
  timeout: setting(positive(deadlineSecondsMax), 'seconds of a rollout', { as: 'timeoutS' }),
  output_dir: setting(text(), 'where results go'),
  state_columns: setting(texts(), 'columns of the state that are kept with a rollout', { neutral: [] }),
  save_results: setting(flag(), 'whether results are kept', { neutral: false, as: 'savesResults' }),
};
/** What it may use, and what that costs. */
const limited = {
  budget: setting(budgetValue(), 'what the evaluation may use at most, as in `[budget]`; it goes on once it has more'),
  prices: setting(
    z
      .strictObject({ input: z.number().min(0), output: z.number().min(0) })
      .meta({ expected: 'a table such as { input = 0.15, output = 0.6 }' }),
    'US dollars of a million prompt tokens and of a million tokens that it samples; asked of servers that tell them when missing',
  ),
};
/** Settings without effect here, with the reason that is reported. */
const withoutEffect = {
  verbose: setting(flag(), 'what is logged does not depend on it'),
  debug: setting(flag(), 'what is logged does not depend on it'),
  disable_tui: setting(flag(), 'say --plain on the command line instead'),
  disable_env_server: setting(flag(), 'environments run beside the rollout workers'),
  save_every: setting(z.int().meta({ expected: 'an integer' }), 'every rollout is stored as soon as it is finished'),
};
export const evalIgnored = Object.entries(withoutEffect).map(([key, { means }]) => [key, means] as const);

/** Settings of a single evaluation, or of all when at the top of the file. */
const settings = {
  ...evaluated,
  env_args: setting(args(), 'another name for `args`'),
  ...access,
  header: setting(headerList('value'), 'headers, as on the command line'),
  header_from_state: setting(headerList('column of the state'), 'headers_from_state, as on the command line'),
  sampling: setting(requestSampling(), 'request fields as verifiers sends them'),
  sampling_args: setting(requestSampling(), 'another name for `sampling`'),
  max_tokens: setting(whole(1, rolloutTokensMax), 'of a turn'),
  temperature: setting(atLeastZero(), 'in place of `sampling`’s'),
  ...course,
  ...limited,
  resume: setting(flag(), 'goes on with the newest unfinished evaluation that matches'),
  resume_path: setting(text(), 'the folder of the one to go on with'),
  save_to_hf_hub: setting(flag(), 'whether results are also uploaded to the Hugging Face Hub'),
  hf_hub_dataset_name: setting(text(), 'made from the environment and the model when missing'),
  ...withoutEffect,
};
const entry = {
  id: setting(environmentId(), 'the environment'),
  env_id: setting(environmentId(), 'another name for `id`'),
  name: setting(environmentLabel(), 'unique within the file; the id’s last part when missing'),
  ...settings,
};

/** Tables of free keys, each with a list of values to sweep. */
export const sweptTables = ['env_args', 'args', 'taskset', 'harness'] as const;
const sweptTable = () =>
  z
    .record(z.string(), z.array(z.json()).min(1))
    .meta({ expected: 'a table of lists: each key with the values it takes in turn' });
const swept = Object.fromEntries(
  Object.entries(entry).map(([key, { type }]): [string, z.ZodType] => {
    if ((sweptTables as readonly string[]).includes(key)) return [key, sweptTable().optional()];
    const expected = `a list of values to take in turn, each ${type.meta()?.expected ?? 'as in [[eval]]'}`;
    return [key, z.array(type).min(1).meta({ expected }).optional()];
  }),
);

export const evalEntry = tableType(entry);
export type EvalEntry = z.infer<typeof evalEntry>;

export const EvalFile = tableType(settings).extend({
  eval: z.array(evalEntry).meta({ expected: 'a list of tables: [[eval]]' }).optional(),
  ablation: z
    .array(evalEntry.extend({ sweep: z.strictObject(swept).optional() }))
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

/**
 * A normalized file of `ratchet eval run`: shared settings merged into each evaluation, ablations expanded. Evaluations
 * inside a run are `EvalSpec` in run-spec.ts.
 */
export const EvaluationSpec = z.strictObject({
  environment: z.strictObject({
    /** The environment's id, as written. */
    id: z.string().min(1),
    /** Unique within the file. */
    name: z.string().min(1),
    ...specFields(evaluated),
  }),
  model: ModelAccessSpec,
  /** Request fields as verifiers sends them: `max_tokens` (per turn), `temperature`, `extra_body`, … */
  sampling: z.record(z.string(), z.json()),
  ...specFields(course),
  /** Missing = nothing is limited. */
  budget: BudgetSpec.optional(),
  prices: z.strictObject({ input: z.number(), output: z.number() }).optional(),
  /** null = one for every 256 concurrent rollouts. */
  numWorkers: z.int().positive().nullable(),
  /** Continues an earlier evaluation: "newest" = the newest unfinished one that matches, else its folder. */
  resume: z.union([z.literal('newest'), z.strictObject({ path: z.string().min(1) })]).nullable(),
  /** Also uploaded to the Hugging Face Hub; the name null = made from the environment and the model. */
  hub: z.strictObject({ dataset: z.string().nullable() }).nullable(),
});
export const EvalRunSpec = z.strictObject({
  schemaVersion: z.literal(1),
  evaluations: z.array(EvaluationSpec).min(1),
});
export type EvaluationSpec = z.infer<typeof EvaluationSpec>;
export type EvalRunSpec = z.infer<typeof EvalRunSpec>;

/** The spec's part for `budget` and `prices`, where they are written. */
export function limitedSpec({ budget, prices }: EvalEntry): Pick<EvaluationSpec, 'budget' | 'prices'> {
  return { ...budgetSpec(budget), ...(prices && { prices }) };
}
