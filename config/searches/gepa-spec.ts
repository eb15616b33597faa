import { z } from 'zod';
import { promptComponents } from '../../core/gepa/prompt-parts.ts';
import { frontierTypes, selectionStrategies } from '../../core/gepa/tuning.ts';
import { ModelAccessSpec } from '../models/model-access.ts';
import { BudgetSpec } from '../settings/budgets.ts';
import { setting, specFields } from '../settings/setting.ts';
import { anyNumber, choice, countOrAll, flag, text, texts, whole } from '../toml/values.ts';

/** Optimization of a system prompt: `[gepa]` of a file of `ratchet gepa run`, and that file normalized. */

export const search = {
  max_calls: setting(whole(1), 'rollouts that may be scored in all', { default: 500 }),
  max_reflections: setting(
    whole(1),
    'texts that the reflection model may write in all; as many as `max_calls` when missing',
  ),
  minibatch_size: setting(whole(1), 'examples of one reflection', { default: 3 }),
  perfect_score: setting(anyNumber(), 'minibatches that score this much are not reflected on'),
  state_columns: setting(texts(), 'columns of the rollout’s state that reflection sees as well', { default: [] }),
  num_train: setting(countOrAll('examples'), 'examples that are reflected on', { default: 100 }),
  num_val: setting(countOrAll('examples'), 'examples that candidates are chosen by', { default: 50 }),
  classic: setting(flag(), 'gepa’s own search, with a budget that is kept', { neutral: false }),
  num_test: setting(
    countOrAll('examples'),
    'examples, of neither kind, that the first and the best prompt are scored on at the end; none when missing',
    { neutral: 0 },
  ),
  initial_prompt: setting(text(), 'what is begun with in place of the environment’s system prompt'),
  components: setting(
    z
      .array(choice(...promptComponents))
      .min(1)
      .meta({ expected: `a list of ${promptComponents.join(', ')}` }),
    'what is written anew',
    { neutral: ['system_prompt'] },
  ),
  merge: setting(flag(), 'whether candidates that changed different components are merged as well', { neutral: false }),
};

/** Settings of the search itself; missing ones are derived from the budget. */
export const tuning = {
  screen: setting(countOrAll('validation examples'), 'examples that a candidate is looked at with first', {
    isLeftOut: true,
  }),
  proposals: setting(whole(1), 'prompts that one reflection proposes', { isLeftOut: true }),
  parallel: setting(whole(1), 'reflections at once', { isLeftOut: true }),
  candidate_selection_strategy: setting(
    z
      .preprocess((value) => (Array.isArray(value) ? value : [value]), z.array(choice(...selectionStrategies)).min(1))
      .meta({ expected: `one of ${selectionStrategies.join(', ')}, or a list of them to draw from` }),
    'which candidate is gone on with',
    { isLeftOut: true, as: 'selection' },
  ),
  frontier_type: setting(choice(...frontierTypes), 'what candidates are compared on', {
    isLeftOut: true,
    as: 'frontier',
  }),
};

const Prices = z.strictObject({ input: z.number().min(0), output: z.number().min(0) });
const prices = () => Prices.meta({ expected: 'a table such as { input = 0.15, output = 0.6 }' });

/** What a search may use, and what that costs; missing = it is limited by its calls alone. */
export const limited = {
  prices: setting(prices(), 'US dollars of a million prompt tokens and of a million tokens that the model samples', {
    isLeftOut: true,
  }),
  reflection_prices: setting(prices(), 'the same of `reflection_model`; those of `prices` where it is the same model', {
    isLeftOut: true,
  }),
};

const free = z.record(z.string(), z.json());
export const GepaSpec = z.strictObject({
  schemaVersion: z.literal(1),
  /** Several are optimized for together, with balanced counts of examples. */
  environments: z
    .array(
      z.strictObject({
        id: z.string().min(1),
        name: z.string().min(1),
        args: free,
        extraKwargs: free,
        /** Environment variables beyond the default ones. */
        variables: z.array(z.string()).default([]),
      }),
    )
    .min(1),
  /** Folder of the project's environments, relative to the working folder unless absolute. */
  environmentsFolder: z.string().min(1),
  model: ModelAccessSpec,
  /** Model that proposes prompts, by id or an alias of the registry. null = the evaluated model. */
  reflectionModel: z.string().min(1).nullable(),
  /** Request fields of rollouts. */
  sampling: free,
  ...specFields(search),
  /** -1 = all remaining, 0 = none. */
  numTest: z.int().default(0),
  maxConcurrent: z.int(),
  seed: z.int().min(0),
  tuning: z.strictObject(specFields(tuning)).default({}),
  ...specFields(limited),
  budget: BudgetSpec.optional(),
  runDir: z.string().nullable(),
  savesResults: z.boolean(),
});
export type GepaSpec = z.infer<typeof GepaSpec>;
