import { z } from 'zod';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { budgetMost } from '../../core/settings/budgets.ts';
import { atLeastZero, positive, text, whole } from '../toml/values.ts';
import {
  inSpec,
  listOf,
  meaning,
  optionalTable,
  required,
  setting,
  specFields,
  tableType,
  type WrittenIn,
} from './setting.ts';

/** `[budget]`, `[env.budget]`, `[eval.budget]`, `[gepa.budget]`: what may be used at most. */

const limits = {
  tokens: setting(
    whole(1, budgetMost.tokens),
    'prompt and sampled tokens of all models; a prompt counts with each call',
    {
      live: liveSettings['budget.tokens'],
    },
  ),
  money: setting(
    positive(budgetMost.money),
    'price of the tokens of all models, and of sandboxes, at the prices of `[cost]`',
    {
      live: liveSettings['budget.money'],
    },
  ),
  sandbox_seconds: setting(positive(budgetMost.sandboxS), 'seconds of sandboxes', {
    as: 'sandboxS',
    live: liveSettings['budget.sandbox_seconds'],
  }),
  tool_calls: setting(whole(0, budgetMost.toolCalls), 'tool calls of the policy', {
    live: liveSettings['budget.tool_calls'],
  }),
  wall_seconds: setting(positive(budgetMost.wallS), 'seconds since its first call, pauses included', {
    as: 'wallS',
    live: liveSettings['budget.wall_seconds'],
  }),
};

export const budget = optionalTable(limits);

function budgetOf(whose: string, ends: string) {
  const fixed = Object.fromEntries(Object.entries(limits).map(([key, { live: _live, ...one }]) => [key, one]));
  return optionalTable(
    meaning(fixed as typeof limits, (key) =>
      key === 'tokens' ? `${limits[key].means}, ${whose}; ${ends}` : `the same`,
    ),
  );
}

export const budgetOfRollout = budgetOf('of a rollout', 'at a limit it ends as `truncated`, and its record says which');
export const budgetOfEvaluation = budgetOf('of one evaluation', 'at a limit it stops, and goes on once it has more');
export const budgetOfSearch = budgetOf(
  'of one search, with its reflections and the comparison at its end',
  'the same as in `[eval.budget]`',
);

/** `budget` of an `[[eval]]` in a file of evaluations. */
export const budgetValue = () =>
  tableType(limits).meta({
    expected: `a table of ${Object.keys(limits).join(', ')}, such as { tokens = 1000000 }`,
  });

export const BudgetSpec = z.strictObject(specFields(limits));
export type BudgetSpec = z.infer<typeof BudgetSpec>;

/** Missing where nothing is limited. */
export function budgetSpec(written: WrittenIn<typeof limits> | undefined): { readonly budget?: BudgetSpec } {
  if (written === undefined || Object.values(written).every((limit) => limit === undefined)) return {};
  return { budget: inSpec(limits, written) };
}

/** `[[cost.models]]`: prices of models beside the policy. */
export const pricedModels = {
  name: required(text(), 'the model, as its calls name it'),
  prompt: required(atLeastZero(), 'price of a million of its prompt tokens'),
  completion: required(atLeastZero(), 'price of a million tokens that it samples'),
};
export const costModels = listOf(pricedModels, (items) =>
  items.meta({ expected: 'a list of tables: [[cost.models]] with a name and prices' }).optional(),
);
export const PricedModels = z.array(z.strictObject(specFields(pricedModels)));

type PricedModels = z.infer<typeof PricedModels>;

export function pricedModelsSpec(written: readonly WrittenIn<typeof pricedModels>[] | undefined): {
  readonly models?: PricedModels;
} {
  return written === undefined || written.length === 0 ? {} : { models: [...written] };
}
