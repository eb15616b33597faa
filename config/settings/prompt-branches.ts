import { z } from 'zod';
import { defaultKey } from '../../core/eval/model-servers.ts';
import { groupRolloutsMax, stepsMax } from '../../core/limits.ts';
import { adoptions } from '../evaluations/eval-words.ts';
import { baseUrl, keyVariable, variableName } from '../models/model-access.ts';
import { anyNumber, choice, environmentLabel, text, texts, whole } from '../toml/values.ts';
import { budgetOfSearch, BudgetSpec, budgetSpec } from './budgets.ts';
import { withNames } from './environments.ts';
import type { RatchetConfig } from './index.ts';
import { inSpec, optionalTable, required, setting, specFields } from './setting.ts';

/** `[gepa]`: searches for better system prompts during training. */

const every = {
  interval: setting(
    whole(1),
    'steps between branches of the run that look for a better system prompt; none by themselves when missing',
  ),
};
const reflection = {
  reflection_model: required(text(), 'who writes prompts anew, as its server calls it'),
  url: required(baseUrl(), 'of its API: any that answers chat completions'),
};
const search = {
  max_calls: setting(whole(1), 'scored rollouts of one branch, never more', {
    default: 500,
    most: [stepsMax, 'every call is stored', 'a budget that you would pay'],
  }),
  num_train: setting(whole(1), 'examples that are reflected on; of training’s own, as all of a branch are', {
    default: 100,
  }),
  num_val: setting(whole(1), 'examples that candidates are chosen by, others than those', { default: 50 }),
  num_test: setting(
    whole(2),
    'examples, none of those, on which the winner and the prompt in use are played once more on the newest version',
    { default: 50 },
  ),
  minibatch_size: setting(whole(1), 'examples of one reflection', {
    default: 3,
    most: [groupRolloutsMax, 'one reflection is told all of it', '3 to 20'],
  }),
  perfect_score: setting(anyNumber(), 'minibatches whose every reward is at least this are not reflected on'),
  state_columns: setting(texts(), 'columns of the rollout’s state that the reflection sees as well', { default: [] }),
  max_concurrent: setting(whole(1), 'rollouts of a branch at once', { default: 32 }),
  adopt: setting(
    choice(...adoptions),
    'whether a better prompt is used: `never`, it is only told; `ask`, by `ratchet gepa adopt RUN`; or `if_better` beyond chance. It applies to groups that are leased after that step',
    { default: 'ask' },
  ),
};

export const promptBranches = optionalTable({
  ...every,
  at_steps: setting(
    z.array(whole(0)).meta({ expected: 'a list of steps such as [50, 100]; 0 = v0' }),
    'further steps at which one begins',
    { default: [] },
  ),
  environments: setting(
    z.array(environmentLabel()).min(1).meta({ expected: 'a list of names of [[env]]' }),
    'whose prompts are looked after; all of `[[env]]` when missing',
  ),
  ...reflection,
  api_key_var: setting(
    variableName(),
    'the name of the environment variable with its key; the usual one of a known API when missing',
  ),
  ...search,
  budget: budgetOfSearch,
});

/** Searches for better system prompts (GEPA) that branch off a run in training. */
export const PromptBranchSpec = z.strictObject({
  ...specFields(every),
  /** Ascending. */
  atSteps: z.array(z.int().min(0)),
  /** Names of environments of the run. */
  environments: z.array(z.string()),
  ...specFields(reflection),
  /** Name of the environment variable with its key; null = no key is needed. */
  apiKeyVar: z.string().nullable(),
  ...specFields(search),
  /** Of each search; missing = nothing is limited but by `maxCalls` and the run's. */
  budget: BudgetSpec.optional(),
});
export type PromptBranchSpec = z.infer<typeof PromptBranchSpec>;

export function promptBranchSpec({ gepa, env }: RatchetConfig): PromptBranchSpec | undefined {
  if (gepa === undefined) return undefined;
  return {
    ...inSpec(every, gepa),
    atSteps: [...new Set(gepa.at_steps)].sort((a, b) => a - b),
    environments: gepa.environments ?? withNames(env).map(({ name }) => name),
    ...inSpec(reflection, gepa),
    apiKeyVar: keyVariable(gepa.api_key_var, defaultKey(gepa.url)),
    ...inSpec(search, gepa),
    ...budgetSpec(gepa.budget),
  };
}
